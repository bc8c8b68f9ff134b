"""Why a serializer has no schema to write with. Each names topic and subject, and what helps."""

from __future__ import annotations

from klamm.registry.client import RegistryError


class SchemaNotRegisteredError(RegistryError):
    """The subject does not have the schema, or no schema at all, and the serializer may not register one."""

    def __init__(
        self, topic: str, subject: str, message: str, status: int | None = None, code: int | None = None
    ) -> None:
        super().__init__(message, status, code)
        self.topic = topic
        self.subject = subject


class SchemaRejectedError(SchemaNotRegisteredError):
    """The registry refused to register the schema: it is not compatible, not valid, or the subject is read-only."""


def reject(topic: str, subject: str, error: RegistryError) -> SchemaRejectedError:
    """Return the error for a registration that the registry refused."""
    reason = error.message or "no reason is given"
    if error.status == 409:
        cure = f"`klamm schema diff {subject} FILE` shows what is not compatible, `klamm schema check` what is allowed"
    elif error.status in (401, 403):
        cure = "set basic.auth.user.info or bearer.auth.token to a user who may write the subject"
    else:
        cure = f"`klamm schema put {subject} FILE` shows the same reason"
    return SchemaRejectedError(
        topic,
        subject,
        f"the schema of topic {topic} was not registered for subject {subject}: {reason}; {cure}",
        error.status,
        error.error_code,
    )


def not_registered(topic: str, subject: str, error_code: int | None = None) -> SchemaNotRegisteredError:
    """Return the error for a schema that the subject does not have."""
    return SchemaNotRegisteredError(
        topic,
        subject,
        f"subject {subject} of topic {topic} does not have this schema: register it with "
        f"`klamm schema put {subject} FILE`, or set auto.register.schemas",
        404,
        error_code,
    )


def no_subject(topic: str, subject: str) -> SchemaNotRegisteredError:
    """Return the error for a subject that does not exist."""
    return SchemaNotRegisteredError(
        topic,
        subject,
        f"the registry has no subject {subject} for topic {topic}: register a schema first with "
        f"`klamm schema put {subject} FILE`, or choose another subject.name.strategy",
        404,
    )
