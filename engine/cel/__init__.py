"""The Common Expression Language: text to tree, tree to checked tree, checked tree to answers by row and by column.

Knows nothing of Kubernetes or YAML.
"""
