"""Every limit of the fleet in one place. Times in seconds, sizes in bytes."""

from __future__ import annotations

MEMBERS_MAX = 1_000
#: how long the driver waits for all members to connect
DIAL_IN_S = 30.0
#: and then for the app's lifespan to open on each of them
UP_S = 75.0

#: longest line before its sender is authenticated, and after
HELLO_BYTES_MAX = 4_096
LINE_BYTES_MAX = 64 * 2**20
#: most unauthenticated connections
UNAUTHENTICATED_MAX = 64
UNAUTHENTICATED_OF_ONE_MAX = 16
#: an unauthenticated connection older than this is closed for a new one
UNAUTHENTICATED_S = 1.0
#: limit for the whole handshake, however its bytes arrive
HANDSHAKE_S = 10.0
#: most log lines of a member that wait for a connection
LOG_LINES_MAX = 1_000
LOG_LINE_CHARS_MAX = 8_192

#: interval of a member's reports while something changes
PROGRESS_EVERY_S = 0.25
#: interval of a member's reports if nothing changes
ALIVE_EVERY_S = 0.8
#: after so long without a report, another member's report of a partition counts
SILENT_S = 2.0
SNAPSHOT_WAIT_S = 1.0

#: deaths of a member within the window that end the run
DEATHS_MAX = 10
DEATHS_WINDOW_S = 120.0
#: a member that is away for this long is logged
AWAY_S = 5.0
#: pause before a member that broke restarts in its process; it doubles up to the second value
AGAIN_S, AGAIN_MAX_S = 0.5, 5.0
#: a killed member is removed from its group unless it is back after so long: in a rebalance that
#: waits for it, and in an idle group, where only its own partitions wait
IN_THE_WAY_S, RETURN_S = 0.4, 2.0

#: how long a member retries its unreachable driver, and then has to finish running calls: with its
#: last commit it is out of the group 10 s after the driver's death
DRIVER_GONE_S = 5.0
#: connection refused means that the driver is gone: no network error looks like that for long
DRIVER_REFUSES_S = 1.5
ORPHAN_DRAIN_S = 3.0
#: time for an old attempt of a task to leave before its successor starts
PREDECESSOR_S = 4.0
#: added to the drain time-out: closing the lifespan, the last commit, leaving the group
LEAVE_S = 15.0

#: the app with its functions, and the sources shipped with it
APP_BYTES_MAX = 64 * 2**20
SOURCE_FILES_MAX = 5_000
SOURCE_BYTES_MAX = 64 * 2**20

#: failures of one task before Spark fails its job (the fleet then submits it again); for a local
#: master it must be in the URL
TASK_FAILURES_MAX = 1_000
#: after this many before a member has connected, the failure is reported instead of retried
FAILURES_SHOWN = 3
