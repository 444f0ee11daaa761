"""A broker that asks for rights."""

from __future__ import annotations

#: what has no rule of its own is everybody's
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
