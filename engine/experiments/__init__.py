"""Many experiments at once: what is varied, who runs it, what is kept of it, and what is shown of it.

An experiment is a point in a space of axes (`axes`). What one comes to is figures by name, and curves: of a trace that
is replayed (`replays`), or of a snapshot of a cluster (`snapshots`). It is run here or elsewhere (`running`), written
down as soon as it is finished (`journal`), and shown as a table (`tables`) and as plots (`plots`, `report`).
"""
