"""Self-contained HTML reports: one file each, without network access, external fonts or scripts."""
