"""The Common Expression Language: parser, checker, and evaluators by row and by column.

Independent of Kubernetes and YAML.
"""
