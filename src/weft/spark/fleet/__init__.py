"""The live fleet: an app's members inside long-lived Spark tasks.

run.py        the driver's handle: starts, watches, stops; ending.py: is the group at the ends yet,
              how it ended, and the report
settings.py   what the user asked for, checked; upfront.py: what is checked of the app and of Kafka
session.py    the Spark session, made or taken, classic or of Spark Connect; one job a member
shipping.py   the app and its sources, on their way to the executors
server.py     the driver's end of the control channel; wire.py: its lines, handshake and signatures
roster.py     received and sent messages; slots.py: what is known of each, and how far
lookout.py    who is away, whose executor goes, and who is dead: pushed out of the group
membership.py names, places and session of members; dead_members.py: those of dead runs
task.py       what Spark runs on an executor; link.py is its end of the channel
hosting.py    the member inside the task: the same runtime as in one process
results.py    results and callbacks, from the members to the user on the driver
outside.py    the driver's socket and HTTP, for all members; aggregate.py: their snapshots as one
lending.py    budgets: the driver lends to the members
limits.py     every limit, in one place
"""
