"""A broker that asks for rights."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

#: what has no rule of its own is everybody's
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ANYBODY, BOB = "User:*", "User:bob"


def set_rights(
    bootstrap: str,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    who: str = BOB,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> None:
    """Add these rules; what has a rule is nobody else's any more."""
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", operation, permission)
        for operation in operations
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls(rules).values():
        future.result(60)
