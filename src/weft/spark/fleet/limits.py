"""Every limit of the fleet in one place. Times in seconds, sizes in bytes."""

from __future__ import annotations

MEMBERS_MAX = 1_000
#: so long the driver waits for all members to dial in
DIAL_IN_S = 30.0
#: and then for the app's lifespan to open on each of them
UP_S = 75.0

#: a line before its sender has proved who it is, and after
HELLO_BYTES_MAX = 4_096
LINE_BYTES_MAX = 64 * 2**20
#: connections that have not proved anything yet
UNAUTHENTICATED_MAX = 64
UNAUTHENTICATED_OF_ONE_MAX = 16
#: one that has taken longer makes room for another
UNAUTHENTICATED_S = 1.0
#: all of the handshake, however its bytes come in
HANDSHAKE_S = 10.0
#: a member may have so many results under way that the driver has not taken yet
RESULTS_UNDER_WAY_MAX = 1_000
LOG_LINES_MAX = 1_000
LOG_LINE_CHARS_MAX = 8_192

PROGRESS_EVERY_S = 0.25
#: where there is none, a member reports so often that it lives
ALIVE_EVERY_S = 0.8
#: a member that has not reported for so long owns no partition that another member reports
SILENT_S = 2.0
SNAPSHOT_WAIT_S = 1.0

#: so often a member may die within the window before the run ends with its story
DEATHS_MAX = 10
DEATHS_WINDOW_S = 120.0
#: a member that is away for this long is logged
AWAY_S = 5.0
AGAIN_S, AGAIN_MAX_S = 0.5, 5.0
#: a killed member is pushed out of its group unless it is back after so long: in a rebalance that
#: waits for it, and in a group at rest, where only its own partitions wait
IN_THE_WAY_S, RETURN_S = 0.4, 2.0

#: a member whose driver does not answer tries its address for so long, and then has so long to
#: finish what runs: with its last commit it is out of the group 10 s after the driver's death
DRIVER_GONE_S = 5.0
#: connection refused means that the driver is gone: no network hides a driver like that for long
DRIVER_REFUSES_S = 1.5
ORPHAN_DRAIN_S = 3.0
#: an old attempt of a task has so long to leave before its successor begins
PREDECESSOR_S = 4.0
#: beyond the drain time-out: closing the lifespan, the last commit, leaving the group
LEAVE_S = 15.0

#: the app with its functions, and the sources that travel with it
APP_BYTES_MAX = 64 * 2**20
SOURCE_FILES_MAX = 5_000
SOURCE_BYTES_MAX = 64 * 2**20

#: failures of one task before Spark gives its job up (the fleet then submits it again); in a
#: local master it must be written into the URL
TASK_FAILURES_MAX = 1_000
#: after so many before a member has dialled in, the failure is reported instead of retried
FAILURES_TELL = 3
