"""Routes of v3 about consumer groups, their members and their lag."""

from __future__ import annotations

from klamm.client.admin.group_types import GroupDescription, MemberDescription
from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.errors import GroupNotFoundError
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.model.ids import TopicPartition
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.fields import number_in_path
from klamm.rest.core.group_lags import GroupLag, list_lags, summarize_lags
from klamm.rest.core.refusals import not_found


class GroupRoutes(V3Routes):
    """Consumer groups."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        group = f"{CLUSTER}/consumer-groups/{{group_id}}"
        consumer = f"{group}/consumers/{{consumer_id}}"
        add_v3(router, "GET", f"{CLUSTER}/consumer-groups", self.list_groups)
        add_v3(router, "GET", group, self.get_group)
        add_v3(router, "GET", f"{group}/consumers", self.list_consumers)
        add_v3(router, "GET", consumer, self.get_consumer)
        add_v3(router, "GET", f"{consumer}/assignments", self.list_assignments)
        add_v3(router, "GET", f"{consumer}/assignments/{{topic_name}}/partitions/{{partition_id}}", self.get_assignment)
        add_v3(router, "GET", f"{group}/lags", self.list_lags)
        add_v3(router, "GET", f"{group}/lags/{{topic_name}}/partitions/{{partition_id}}", self.get_lag)
        add_v3(router, "GET", f"{group}/lag-summary", self.get_lag_summary)

    async def list_groups(self, request: RestRequest) -> HttpResponse:
        """GET .../consumer-groups."""
        printer = self.printer(request)
        # Groups of other kinds, such as those of registries, are no consumer groups.
        names = [
            group.group_id
            for group in await request.clients.admin.list_groups()
            if group.protocol_type in ("", "consumer") and group.type.lower() in ("", "classic", "consumer")
        ]
        groups = await request.clients.admin.describe_groups(names) if names else {}
        resources = [printer.group(group) for _, group in sorted(groups.items())]
        return json_response(printer.list_of("KafkaConsumerGroup", resources, "consumer-groups"))

    async def get_group(self, request: RestRequest) -> HttpResponse:
        """GET .../consumer-groups/{group_id}."""
        printer = self.printer(request)
        return json_response(printer.group(await self._describe(request)))

    async def list_consumers(self, request: RestRequest) -> HttpResponse:
        """GET .../consumers."""
        printer = self.printer(request)
        group = await self._describe(request)
        name = group.group_id
        resources = [printer.consumer(name, member) for member in group.members]
        return json_response(printer.list_of("KafkaConsumer", resources, "consumer-groups", name, "consumers"))

    async def get_consumer(self, request: RestRequest) -> HttpResponse:
        """GET .../consumers/{consumer_id}."""
        printer = self.printer(request)
        return json_response(printer.consumer(request.values["group_id"], await self._find_member(request)))

    async def list_assignments(self, request: RestRequest) -> HttpResponse:
        """GET .../consumers/{consumer_id}/assignments."""
        printer = self.printer(request)
        name, member = request.values["group_id"], await self._find_member(request)
        place = ("consumer-groups", name, "consumers", member.member_id, "assignments")
        resources = [printer.assignment(name, member.member_id, partition) for partition in sorted(member.assignment)]
        return json_response(printer.list_of("KafkaConsumerAssignment", resources, *place))

    async def get_assignment(self, request: RestRequest) -> HttpResponse:
        """GET .../assignments/{topic_name}/partitions/{partition_id}."""
        printer = self.printer(request)
        member = await self._find_member(request)
        partition = _partition_in_path(request)
        if partition not in member.assignment:
            raise not_found(f"Partition {partition.partition} of topic {partition.topic} is not assigned.")
        return json_response(printer.assignment(request.values["group_id"], member.member_id, partition))

    async def list_lags(self, request: RestRequest) -> HttpResponse:
        """GET .../lags."""
        printer = self.printer(request)
        name = request.values["group_id"]
        resources = [printer.lag(name, lag) for lag in await self._lags(request)]
        return json_response(printer.list_of("KafkaConsumerLag", resources, "consumer-groups", name, "lags"))

    async def get_lag(self, request: RestRequest) -> HttpResponse:
        """GET .../lags/{topic_name}/partitions/{partition_id}."""
        printer = self.printer(request)
        partition = _partition_in_path(request)
        for lag in await self._lags(request):
            if lag.partition == partition:
                return json_response(printer.lag(request.values["group_id"], lag))
        raise not_found(f"Lag for partition {partition.partition} of topic {partition.topic} could not be found.")

    async def get_lag_summary(self, request: RestRequest) -> HttpResponse:
        """GET .../lag-summary: the largest lag, and the sum."""
        printer = self.printer(request)
        summary = summarize_lags(await self._lags(request))
        if summary is None:
            raise not_found("Consumer group offsets could not be found.")
        return json_response(printer.lag_summary(request.values["group_id"], summary))

    async def _describe(self, request: RestRequest) -> GroupDescription:
        name = request.values["group_id"]
        refusal = not_found(f"Consumer Group {name} could not be found.")
        try:
            group = (await request.clients.admin.describe_groups([name]))[name]
        except GroupNotFoundError:
            raise refusal from None
        # Brokers before KIP-1043 describe a group that does not exist as dead.
        if group.state == "Dead" and not group.members:
            raise refusal
        return group

    async def _find_member(self, request: RestRequest) -> MemberDescription:
        name = request.values["consumer_id"]
        for member in (await self._describe(request)).members:
            if member.member_id == name:
                return member
        raise not_found(f"Consumer {name} could not be found in group {request.values['group_id']}.")

    async def _lags(self, request: RestRequest) -> list[GroupLag]:
        group = await self._describe(request)
        committed = await request.clients.admin.list_group_offsets(group.group_id)
        if not committed:
            return []
        ends = await request.clients.admin.list_available_offsets(dict.fromkeys(committed, OffsetSpec.LATEST))
        return list_lags(group, committed, {partition: end.offset for partition, end in ends.items()})


def _partition_in_path(request: RestRequest) -> TopicPartition:
    text = request.values["partition_id"]
    index = number_in_path(text, not_found(f"Partition {text} could not be found."))
    return TopicPartition(request.values["topic_name"], index)
