"""The live fleet: an app's members inside long-lived Spark tasks.

run.py        the driver's handle: starts, watches, stops; ending.py: whether the group has reached
              the ends, how the run ended, and the report
settings.py   the user's options, checked; upfront.py: checks of the app and of Kafka
session.py    the Spark session, created or given, classic or Spark Connect; one job per member
shipping.py   the app and its sources, shipped to the executors
server.py     the driver's end of the control channel; wire.py: its lines, handshake and signatures
roster.py     received and sent messages; slots.py: the state of each member
lookout.py    members that are away, executors that go, and dead members, removed from the group
membership.py names, ids and sessions of members; dead_members.py: dead members of earlier runs
task.py       what Spark runs on an executor; link.py is its end of the channel
hosting.py    the member inside the task: the same runtime as in one process
callbacks.py  the user's callbacks, called on the driver; readers of results are refused
outside.py    the driver's socket and HTTP, for all members; aggregate.py: their snapshots merged
limits.py     every limit, in one place
"""
