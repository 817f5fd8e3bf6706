"""Keeps Gofer running: starts the current release, watches it, restarts it, and goes back to the one that worked.

It imports the standard library alone, so that a broken release cannot break it. `home.py` has what is on disk,
`process.py` one process, `http.py` the health check and the page shown while nothing runs, `system.py` what is asked of
the machine, `deployment.py` how a release is deployed and taken back, `supervisor.py` the rest.
"""
