"""The shop on stage: a real server, a real worker, two beats, a burst of events, two kills, and a verdict.

``command.py`` is the command line, ``show.py`` the course of events, ``verdict.py`` what the database says in the end.
They need ``processes.py`` (worker and beats), ``server.py`` (an embedded Valkey server), ``outside.py`` (the services
that the shop calls, with their faults), ``witness.py`` (in the worker: sees the bodies run) and ``records.py`` (what it
writes down). The shop knows nothing of them.
"""
