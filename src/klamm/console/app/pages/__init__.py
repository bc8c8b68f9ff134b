"""The pages, one file per noun. Each is a class whose `add_routes` serves it."""

from klamm.console.app.pages.access import AccessPages
from klamm.console.app.pages.access_changes import AccessChangePages
from klamm.console.app.pages.account import AccountPages
from klamm.console.app.pages.audit import AuditPages
from klamm.console.app.pages.brokers import BrokerPages
from klamm.console.app.pages.groups import GroupPages
from klamm.console.app.pages.messages import MessagePages
from klamm.console.app.pages.overview import OverviewPages
from klamm.console.app.pages.pipelines import PipelinePages
from klamm.console.app.pages.produce import ProducePages
from klamm.console.app.pages.reassignments import ReassignmentPages
from klamm.console.app.pages.schema_changes import SchemaChangePages
from klamm.console.app.pages.schemas import SchemaPages
from klamm.console.app.pages.topic_changes import TopicChangePages
from klamm.console.app.pages.topics import TopicPages
from klamm.console.app.pages.transactions import TransactionPages

PAGES = (
    AccountPages,
    OverviewPages,
    TopicPages,
    TopicChangePages,
    MessagePages,
    ProducePages,
    GroupPages,
    BrokerPages,
    ReassignmentPages,
    TransactionPages,
    SchemaPages,
    SchemaChangePages,
    PipelinePages,
    AccessPages,
    AccessChangePages,
    AuditPages,
)
