"""A store of prompts' beginnings: a tree of blocks of tokens, of which the least recently used go.

A block holds what reading its tokens behind those above it leaves. The first block of a prompt has
one token more than the others, since reading a prompt begins behind its first token.
"""

import collections
from collections.abc import Callable, Iterator, Sequence

from jax import Array

BLOCK = 64  # tokens


class Block:
  """A node of the tree.

  Attributes:
    held: what its tokens leave; nothing once the block has gone.
    size: of that, in bytes.
    page: where the rest of it is, with caches in pages.
  """

  held: Sequence[Array]
  size: int
  page: int

  def __init__(
    self, above: "Block | None", tokens: tuple[int, ...], held: Sequence[Array], page: int = 0
  ):
    self.above, self.tokens, self.held, self.page = above, tokens, held, page
    self.below = dict[tuple[int, ...], Block]()
    self.size = sum(x.nbytes for x in held)


class Prefixes:
  """The tree.

  Args:
    budget: the most bytes that all blocks together hold.
    gone: is called with each block that goes.

  Attributes:
    bytes: what they hold.
  """

  bytes: int

  def __init__(self, budget: int, gone: Callable[[Block], None] = lambda block: None):
    self.budget, self.bytes, self._gone = budget, 0, gone
    self._root = Block(None, (), ())
    # The least recently used first. A block is used after those below it, so the first is a leaf.
    self._used = collections.OrderedDict[Block, None]()

  def __len__(self) -> int:
    """How many blocks there are."""
    return len(self._used)

  def find(self, ids: Sequence[int]) -> list[Block]:
    """The longest chain of blocks, from the root's child on, whose tokens begin these ids."""
    found, at = list[Block](), self._root
    for tokens in _blocks(ids):
      if (block := at.below.get(tokens)) is None:
        break
      found.append(block)
      at = block
    self._use(found)
    return found

  def __iter__(self) -> Iterator[Block]:
    """The blocks, the least recently used first."""
    return iter(self._used)

  def add(
    self, above: Sequence[Block], ids: Sequence[int], held: Sequence[Array], page: int = 0
  ) -> Block:
    """The block of `ids` behind a chain of blocks; it is not kept where the chain has gone."""
    first = 1 + len(above) * BLOCK
    tokens = tuple(ids[first if above else 0 : first + BLOCK])
    at = above[-1] if above else self._root
    if above and at not in self._used:
      return Block(at, tokens, ())
    at.below[tokens] = block = Block(at, tokens, held, page)
    self.bytes += block.size
    self._use([*above, block])
    while self.bytes > self.budget:
      self.drop(next(iter(self._used)))
    return block

  def drop(self, block: Block) -> None:
    """Keeps a block no longer, below which there is none."""
    del self._used[block]
    assert block.above is not None  # it is not the root
    del block.above.below[block.tokens]
    self.bytes -= block.size
    block.held = ()
    self._gone(block)

  def _use(self, chain: Sequence[Block]) -> None:
    for block in reversed(chain):
      self._used[block] = None
      self._used.move_to_end(block)


def _blocks(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
  """The tokens of each whole block."""
  first = 0
  for end in range(1 + BLOCK, len(ids) + 1, BLOCK):
    yield tuple(ids[first:end])
    first = end
