"""A small shop whose tasks run alone on the order they work for: ``python -m example_project`` shows it.

Read ``tasks.py`` first, it is what an application writes. Around it: ``app.py`` and ``config.py`` (Celery),
``models.py`` (the database), ``gateway.py`` (the services it calls), ``witness.py`` (what the bodies write down about
themselves). The show: ``__main__.py``, ``show.py`` (events, a kill, progress), ``verdict.py`` (what the database says
in the end), ``processes.py`` and ``server.py`` (worker, beats and an embedded Valkey server), ``outside.py`` (the
services, with their faults).
"""
