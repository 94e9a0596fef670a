"""The console: pages that show a cluster, its decisions and its policies, and try a policy on it.

A view is a pure function of the cluster's snapshot and the policies, with a model as its result (`models`). The server
answers with models as JSON, and serves the front end, which is built from `web/`.
"""
