"""The live fleet: an app's members inside long-lived Spark tasks.

run.py        the driver's handle: starts, watches, stops, reports
settings.py   what the user asked for, checked; session.py makes or takes the Spark session
shipping.py   the app and its sources, on their way to the executors
jobs.py       one Spark job a member, submitted again when Spark gives up on it
server.py     the driver's end of the control channel, wire.py its lines and its handshake
slots.py      what the driver knows of each member; drained.py: is the group at the ends yet
task.py       what Spark runs on an executor; link.py is its end of the channel
hosting.py    the member inside the task: the same runtime as in one process
"""
