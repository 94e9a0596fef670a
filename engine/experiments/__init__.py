"""Experiments in bulk: their axes, runners, journal and presentation.

An experiment is a point in a space of axes (`axes`). Its result is figures by name, and curves: of a replay of a
trace (`replays`), or of a snapshot of a cluster (`snapshots`). It is run here or remotely (`running`), recorded
as soon as it is finished (`journal`), and presented as a table (`tables`) and as plots (`plots`, `report`).
"""
