"""Conversations to ids: their text is cut into messages, and what these say is encoded between constant ids.

What is between two special tokens is one piece of text, and each piece is encoded alone; but the assistant's opening is
a piece of its own. Special ids are set by index, and no content yields one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import text_bytes, text_offsets, wrap_numbers, wrap_slices, wrap_texts
from shards.format.arrays import Int64s, UInt32s
from shards.format.chat import MARK_BYTES, ROLES, ChatIds, find_marks


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a batch of conversations, one after the other."""

    chat: ChatIds
    """The ids around a content."""
    roles: Int64s
    """The role of each, as its place in `ROLES`, `(messages,)`."""
    first: Int64s
    """The first message of each conversation, and the number of all, `(conversations + 1,)`."""
    contents: pa.LargeStringArray
    """What each says, `(messages,)`."""

    @property
    def conversations(self) -> Int64s:
        """The conversation of each message, `(messages,)`."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def make_pieces(self) -> pa.LargeStringArray:
        """Return the text of each message that is encoded at once: its content, after the lead of its role."""
        if not any(self.chat.leads.values()):
            return self.contents
        import pyarrow.compute as pc  # late: it takes 0.06 s

        leads = wrap_texts(pa.large_string(), [self.chat.leads[role].encode() for role in ROLES])
        return pc.binary_join_element_wise(
            leads.take(wrap_numbers(pa.int64(), self.roles)), self.contents, pa.scalar("", pa.large_string())
        )

    def join(self, pieces: UInt32s, bounds: Int64s) -> tuple[UInt32s, Int64s]:
        """Return the ids of the conversations, without BOS and EOS, and where each begins in them.

        Args:
            pieces: the ids of all pieces, one after the other.
            bounds: where each piece begins in them, and the last ends, `(messages + 1,)`.
        """
        import pyarrow.compute as pc  # late: it takes 0.06 s

        # As bytes, which Arrow joins: numpy takes twice the time to set ids by their places.
        kind, size = pa.large_binary(), pieces.itemsize
        heads = wrap_texts(kind, [np.array(self.chat.heads[role], pieces.dtype).tobytes() for role in ROLES])
        tail = np.array(self.chat.tail, pieces.dtype).tobytes()
        joined = pc.binary_join_element_wise(
            heads.take(wrap_numbers(pa.int64(), self.roles)),
            wrap_slices(kind, bounds * size, pieces.data),
            *(pa.scalar(text, kind) for text in (tail, b"")),
        )
        ids = np.frombuffer(text_bytes(joined), pieces.dtype)
        return ids, text_offsets(joined)[self.first] // size


def find_messages(text: pa.LargeStringArray, chat: ChatIds) -> Messages:
    """Find the messages of conversations, each of which begins with a mark."""
    offsets = text_offsets(text)
    places, roles = find_marks(np.frombuffer(text_bytes(text), np.uint8))
    places += offsets[0]
    # Marks and contents take turns in the text; the contents are every second part.
    edges = np.empty(2 * len(places) + 1, np.int64)
    edges[:-1:2], edges[1::2], edges[-1] = places, places + MARK_BYTES, offsets[-1]
    parts = wrap_slices(pa.large_string(), edges, text.buffers()[2])
    contents = parts.take(wrap_numbers(pa.int64(), np.arange(1, 2 * len(places), 2)))
    return Messages(chat, roles, np.searchsorted(places, offsets), contents)
