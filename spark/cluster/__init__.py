"""Where Spark runs: the session that the jobs share, here or on a cluster.

Open `session` first; `master` is the cluster that a user names and its secret, `package` the Python
environment that executors are given, `executors` whether they came and see the folder that they share.
"""
