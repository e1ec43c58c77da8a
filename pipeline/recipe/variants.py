"""Tables of a recipe whose keys depend on their kind: a base class with the keys of all kinds, a subclass for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

from pydantic import ModelWrapValidatorHandler, model_validator

from shards.config import Settings


class Variants(Settings):
    """Base of such a base class. Validating a table with the base class gives an instance of the subclass it is for."""

    ABSENT: ClassVar[dict[str, Any]] = {}
    """The keys that a set's `recipe.json` begins with, and what it holds for a kind without them; `...`: nothing."""
    WITHOUT: ClassVar[tuple[str, ...]] = ()
    """Keys of the base class that mean nothing for a kind."""
    REMEDY: ClassVar[str] = ""
    """The fault of a key of another kind in a table of this one, with the remedy."""

    @classmethod
    def variants(cls) -> Sequence[type[Self]]:
        """Return the subclasses, or the class itself if it has none."""
        return cls.__subclasses__() or [cls]

    @classmethod
    def kind_of(cls, table: dict[str, Any]) -> type[Self]:
        """Return the kind that a raw table of any shape is for."""
        raise NotImplementedError

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of all kinds, in the order of `recipe.json`."""
        # Keys that all kinds share come in the order of the first kind.
        own = dict.fromkeys(key for kind in cls.variants() for key in kind.model_fields)
        return list(dict.fromkeys([key for key in cls.ABSENT if key in own] + list(own)))

    @classmethod
    def foreign_keys(cls, table: dict[str, Any]) -> list[str]:
        """Return the keys of a raw table that only other kinds use."""
        kind = cls.kind_of(table)
        own = kind.model_fields.keys() - set(kind.WITHOUT)
        return [key for key in cls.key_names() if key in table and key not in own]

    @model_validator(mode="wrap")
    @classmethod
    def _choose_kind(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not cls.__subclasses__() or not isinstance(data, dict):
            return handler(data)
        table = cast("dict[str, Any]", data)
        # A set's recipe.json has the keys of the other kinds, too; `pipeline.recipe.checks` refuses those with a value.
        foreign = cls.foreign_keys(table)
        return cls.kind_of(table).model_validate({key: value for key, value in table.items() if key not in foreign})

    def to_written(self) -> dict[str, Any]:
        """Return the table as a set's `recipe.json` has it."""
        own = self.model_dump(mode="json")
        written = {key: own.get(key, value) for key, value in self.ABSENT.items()} | own
        return {key: value for key, value in written.items() if value is not ...}
