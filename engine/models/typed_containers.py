"""``nn.ModuleList`` and ``nn.ModuleDict`` with the class of their members, for static checks alone.

``ModuleListOf[Block](…)`` is a plain ``nn.ModuleList`` when it runs: torch's own containers hide the class of what they
hold, so that a checker takes each member for any module or tensor.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from torch import nn

M = TypeVar("M", bound=nn.Module)

if TYPE_CHECKING:

    class ModuleListOf(nn.ModuleList, Generic[M]):
        """A list of modules of one class."""

        @overload  # type: ignore[override]
        def __getitem__(self, index: int) -> M: ...
        @overload
        def __getitem__(self, index: slice) -> ModuleListOf[M]: ...
        def __getitem__(self, index: int | slice) -> M | ModuleListOf[M]: ...
        def __iter__(self) -> Iterator[M]: ...

    class ModuleDictOf(nn.ModuleDict, Generic[M]):
        """Modules of one class by name."""

        def __getitem__(self, key: str) -> M: ...
        def items(self) -> ItemsView[str, M]: ...

else:

    class ModuleListOf:
        """``nn.ModuleList`` for every class of members."""

        def __class_getitem__(cls, member: Any) -> type[nn.ModuleList]:
            return nn.ModuleList

    class ModuleDictOf:
        """``nn.ModuleDict`` for every class of members."""

        def __class_getitem__(cls, member: Any) -> type[nn.ModuleDict]:
            return nn.ModuleDict
