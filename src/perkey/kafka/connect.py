"""Create an app's clients: for a real cluster or for a test's in-memory broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaException

from perkey.errors import ConfigError
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.log_reader import LogReader
from perkey.kafka.ports import (
    REAL_CLOCK,
    AdminPort,
    Clock,
    ConsumerPort,
    KafkaUnavailable,
    ProducerPort,
    TransactionsPort,
    Word,
)
from perkey.kafka.probing import refusal
from perkey.kafka.settings import ClientSettings, client_settings, with_own_id
from perkey.types import DeliveryName

MEMORY_SCHEME = "memory://"


class WordsPort(Protocol):
    """The last value of each key of a compacted topic. Thread-safe."""

    def last(self) -> dict[bytes, Word]:
        """Values by key, without deleted ones."""

    def now(self) -> float:
        """The current time of the clock that stamps the records, in UNIX seconds."""

    def is_read(self) -> bool:
        """With `whole`: whether everything that the topic held at the start has been read."""

    def close(self) -> None:
        """Stop reading."""


class Connection(Protocol):
    """Creates the clients of one member."""

    settings: ClientSettings

    def consumer(self) -> ConsumerPort:
        """A new consumer."""

    def producer(
        self, on_served: Callable[[], None], on_failed: Callable[[str], None]
    ) -> ProducerPort:
        """A new producer; `on_failed` gets the reason when producing is no longer possible."""

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Transactions under this id."""

    def log_reader(self, *, as_consumer: bool = False) -> LogReader:
        """Reads ranges of logs, and the group's commits, without joining the group.

        `as_consumer`: with the consumer's isolation level, otherwise read_committed.
        """

    def last_words(
        self,
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
    ) -> WordsPort:
        """Follows a compacted topic; `failed` gets the reason if it cannot be read.

        `whole`: from the start of the topic instead of the last hour, only records stamped by the
        broker's clock, and with tombstones as empty values. `of_now`: keys that have a separate
        limit.
        """

    def instance_id(self) -> str | None:
        """The user's `group.instance.id`."""
        given = self.settings.consumer.get("group.instance.id")
        return None if given is None else str(given)

    def admin(self) -> AdminPort:
        """A new admin client."""

    def described(self) -> str:
        """The brokers, for messages."""

    def max_poll_interval_s(self) -> float:
        """The longest allowed time between two polls."""
        return float(self.settings.consumer.get("max.poll.interval.ms", 300_000)) / 1000

    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are hidden."""
        return str(self.settings.consumer.get("isolation.level")) == "read_committed"

    @property
    def clock(self) -> Clock:
        """The clock of this cluster."""

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The function to call for a handler: a test's cluster adds its crash points around it."""


class RealConnection(Connection):
    """Clients of a Kafka cluster."""

    clock = REAL_CLOCK

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        #: for all consumers of this run: a recreated one takes the place of the former one
        self._consumer = with_own_id(settings.consumer)
        self._own_id = self._consumer is not settings.consumer

    def consumer(self) -> ConsumerPort:
        """A new consumer."""
        from perkey.kafka.consumer import KafkaConsumer

        return KafkaConsumer(with_client_log(self._consumer), own_id=self._own_id)

    def producer(
        self, on_served: Callable[[], None], on_failed: Callable[[str], None]
    ) -> ProducerPort:
        """A new producer."""
        from perkey.kafka.producer import KafkaProducer

        return KafkaProducer(with_client_log(self.settings.producer), on_served, on_failed)

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Transactions under this id."""
        from perkey.kafka.transactions import KafkaTransactions

        config = with_client_log(self.settings.producer)
        return KafkaTransactions(config, transactional_id, own_id=self._own_id)

    def log_reader(self, *, as_consumer: bool = False) -> LogReader:
        """Reads ranges of logs, and the group's commits, without joining the group."""
        from perkey.kafka.log_reader import KafkaLogReader

        return KafkaLogReader(self.settings.consumer, as_consumer=as_consumer)

    def last_words(
        self,
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
    ) -> WordsPort:
        """Follows a compacted topic, see `Connection`."""
        from perkey.kafka.following import LastWords

        # The name of the own group: the login may lack permissions for another one.
        named = {"group.id": self.settings.consumer["group.id"]}
        properties = {**self.settings.admin, **named}
        return LastWords(properties, topic, wanted, failed, whole=whole, of_now=of_now)

    def admin(self) -> AdminPort:
        """A new admin client."""
        from perkey.kafka.admin import KafkaAdmin

        try:
            return KafkaAdmin(self.settings)
        except KafkaException as error:  # the first client: refused settings are reported here
            if error.args[0].str().startswith("OAuth token not set") and self.settings.admin.get(
                "oauth_cb"
            ):  # the callback raised, which is logged, or set no token
                raise KafkaUnavailable("oauth_cb returned no token") from None
            raise ConfigError(refusal(error.args[0].str(), self.settings.admin)) from None

    def described(self) -> str:
        """The brokers, for messages."""
        return self.settings.bootstrap

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler unchanged."""
        return handler


#: in-memory brokers by address, registered by `perkey.testing`
MEMORY: dict[str, Callable[[ClientSettings], Connection]] = {}


def connect(
    kafka: Mapping[str, Any],
    producer: Mapping[str, Any],
    *,
    group: str,
    buffer_records: int,
    buffer_bytes: int,
    delivery: DeliveryName,
    fleet_instance_id: str | None = None,
) -> Connection:
    """The clients for these properties; raises ConfigError for properties unknown to librdkafka."""
    address = str(kafka.get("bootstrap.servers", ""))
    in_memory = address.startswith(MEMORY_SCHEME)
    if in_memory and address not in MEMORY:
        raise ConfigError(
            f"kafka: bootstrap.servers={address}: this in-memory broker does not exist in this "
            "process (any more): use the address of a perkey.testing.MemoryKafka that is open"
        )
    settings = client_settings(
        {**kafka, "bootstrap.servers": "memory:9092"} if in_memory else kafka,
        producer,
        group=group,
        buffer_records=buffer_records,
        buffer_bytes=buffer_bytes,
        delivery=delivery,
        fleet_instance_id=fleet_instance_id,
    )
    return MEMORY[address](settings) if in_memory else RealConnection(settings)
