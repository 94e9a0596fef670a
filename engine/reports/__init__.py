"""Pages for people to look at: one file each, which needs no network, no font and no script of anybody else."""
