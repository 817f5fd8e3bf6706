"""`gofer runtimes host`: the process that reaches other people's agents on the machine where they run.

The only package that starts, looks at or types into such a process. It speaks with Gofer through the API alone, and
takes commands from its user's own file, never from Gofer.
"""
