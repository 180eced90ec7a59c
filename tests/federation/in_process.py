"""A Grid without a network: messages are serialised as Flower does it and answered in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedprior.flower import messages

SERVER = 1
Answer = Callable[[str, dict[str, Any], Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]
Node = Callable[[str, Message], Message | None]


def travelled(message: Message) -> Message:
    """As it arrives at the other end."""
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


def numbered(message: Message, number: int) -> Message:
    """With the id that a SuperLink gives it."""
    message.metadata.__dict__["_message_id"] = str(number)
    return message


def answering(answer: Answer) -> Node:
    """A node that answers orders."""

    def node(site: str, message: Message) -> Message:
        return Message(messages.pack(*answer(site, *messages.unpack(message.content))), reply_to=message)

    return node


class InProcess:
    """What `GridLink` needs of a Grid, with one node per site; a node that answers None is silent."""

    def __init__(self, sites: Sequence[str], node: Node) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self.names = {SERVER + 1 + k: site for k, site in enumerate(sites)}
        self.sites = {site: number for number, site in self.names.items()}
        self.node, self.pushed, self.replies = node, 0, dict[str, Message]()

    def push_messages(self, sent: Iterable[Message]) -> list[str]:
        """Every message is answered at once."""
        ids = []
        for message in sent:
            self.pushed += 1
            ids.append(str(self.pushed))
            arrived = travelled(numbered(message, self.pushed))
            reply = self.node(self.names[arrived.metadata.dst_node_id], arrived)
            if reply is not None:
                self.replies[ids[-1]] = travelled(numbered(reply, -self.pushed))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        """Replies to these messages."""
        return [self.replies.pop(number) for number in ids if number in self.replies]

    def get_nodes(self) -> list[SimpleNamespace]:
        """All nodes."""
        return [SimpleNamespace(node_id=n, name=name, status="online") for n, name in self.names.items()]
