"""Text that a grammar allows: tokens that do not fit it become unlikely.

A grammar (see `gbnf`) becomes a finite automaton over the bytes of UTF-8, so that a token may end inside of a
character. For that, a rule may contain itself at the end of an alternative only: what would have to be counted, such as
brackets, nobody speaks. The automaton is made deterministic as far as it is used.

Source: Thompson (1968), "Regular expression search algorithm"; Cox (2010), "Regular expression matching in the wild"
(ranges of characters as ranges of bytes); whisper.cpp (the penalty).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.errors import ConfigError
from streamer.whisper.decode import gbnf
from streamer.whisper.decode.gbnf import Characters, Group, Item, Reference, Repetition, Rules
from streamer.whisper.decode.spelling import token_bytes
from streamer.whisper.tokens.tokenizer import Tokenizer

# What whisper.cpp takes off the logits of text that does not fit: as good as never, where anything else is possible.
GRAMMAR_PENALTY = 100.0

# Most steps of building: far more than commands need, and done in a second.
MAX_STEPS = 50_000
MAX_REACHED = 200_000  # nodes that are reached for free, from all nodes together
MAX_DEPTH = 100  # of rules and parentheses inside of each other, a rule counted threefold

# What is remembered is forgotten when there is more: states of the automaton, in units of 64 bytes; states with the
# tokens that do not fit, 50 kilobytes each; texts with their states. One step may need more states, but not any number.
MAX_SIZE = 500_000
MAX_SIZE_OF_STEP = 2_000_000
MAX_REJECTS = 256
MAX_TEXTS = 4096

# States of the deterministic automaton.
_DEAD = 0
_START = 1

_ACCEPT = 0  # the node at the end


class Grammar:
    """A grammar ready to be followed."""

    def __init__(self, rules: Rules, root: str = "root") -> None:
        """Take the rules that `root` begins.

        Raises ConfigError where a rule is missing, contains itself elsewhere than at the end of an alternative, or has
        no end, or the whole is too large.
        """
        network = _Network(rules)
        begin = network.enter(root)
        space = network.add_space(begin)
        for name in rules.rules:
            network.check_references(name)
        self._where = rules.where
        self._closures = network.closures()
        self._moves = network.moves
        if not self._closures[begin]:
            raise ConfigError(f"{rules.where}: no text ever completes the rule {root!r:.60}; give it an end")
        # Whisper begins a text with a space, whether or not the grammar does.
        self._begin = self._closures[begin] | self._closures[space]
        self.forget()

    @classmethod
    def read(cls, path: Path, root: str = "root") -> "Grammar":
        """Read a file of rules. Raises ConfigError where it cannot be read or is not a usable grammar."""
        return cls(gbnf.read(path), root)

    def forget(self) -> None:
        """Forget all states but the first two; those that were given out are void."""
        self._sets: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}

        # Memory of all states, in units of 64 bytes.
        self.size = 0

        # Next state for each byte, -1 for all where this was not found out yet.
        self._table = np.zeros((64, 256), dtype=np.int32)
        self._number(frozenset())
        self._table[_DEAD] = _DEAD
        self._number(self._begin)

    def follow(self, state: int, data: bytes) -> int:
        """Return the state after bytes."""
        for byte in data:
            if self._table[state, 0] < 0:
                self._fill(state)
            state = int(self._table[state, byte])
        return state

    def step(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the states after a byte each, shape (n,)."""
        for state in np.unique(states[self._table[states, 0] < 0]).tolist():
            self._fill(state)
        return self._table[states, data]

    def complete(self, state: int) -> bool:
        """Whether the text may end here."""
        return _ACCEPT in self._sets[state]

    def _fill(self, state: int) -> None:
        targets: list[set[int]] = [set() for _ in range(256)]
        for node in self._sets[state]:
            for first, last, target in self._moves[node]:
                for byte in range(first, last + 1):
                    targets[byte].add(target)
        row = []
        numbers: dict[frozenset[int], int] = {}
        for nodes in map(frozenset, targets):
            if nodes not in numbers:
                numbers[nodes] = self._number(frozenset[int]().union(*(self._closures[node] for node in nodes)))
            row.append(numbers[nodes])
        self._table[state] = row

    def _number(self, nodes: frozenset[int]) -> int:
        number = self._numbers.setdefault(nodes, len(self._sets))
        if number == len(self._sets):
            self.size += 256 // 16 + len(nodes)
            if self.size > MAX_SIZE_OF_STEP:
                raise ConfigError(
                    f"{self._where} leaves too many ways open: expected a small grammar; let what follows . or [^...]"
                    " repeat less"
                )
            self._sets.append(nodes)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._table[number] = -1
        return number


class GrammarFilter:
    """Text that a grammar allows; where it is left all the same, nothing is asked any more.

    A penalty, as in whisper.cpp, and no ban: where other rules forbid all that would fit, there is still a way on.
    Other than there, the end of the text is penalised too while the grammar is not complete. Timestamps are free.

    One thread at a time; it may be used for any number of windows, and gets faster.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, penalty: float = GRAMMAR_PENALTY) -> None:
        self._grammar = grammar
        self._penalty = penalty
        self._spelled = token_bytes(tokenizer)

        # Tokens, those with most bytes first; and at each place the bytes of those that reach it.
        by_length = sorted(self._spelled, key=len, reverse=True)
        self._order = np.array(sorted(range(len(self._spelled)), key=lambda t: len(self._spelled[t]), reverse=True))
        self._columns = [
            np.array([spelled[i] for spelled in by_length if i < len(spelled)], dtype=np.uint8)
            for i in range(len(by_length[0]))
        ]

        # State after tokens.
        self._states: dict[tuple[int, ...], int] = {}

        # State to the tokens that do not fit, shape (end of text + 1,).
        self._rejects: dict[int, NDArray[np.bool_]] = {}

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """See LogitFilter."""
        if self._grammar.size > MAX_SIZE:
            self._grammar.forget()
            self._states.clear()
            self._rejects.clear()
        state = self._state_after(tuple(tokens))
        if state == _DEAD:
            return
        if state not in self._rejects:
            if len(self._rejects) >= MAX_REJECTS:
                self._rejects.clear()
            self._rejects[state] = self._find_rejects(state)
        reject = self._rejects[state]
        text = logits[: len(reject)]
        np.subtract(text, self._penalty, out=text, where=reject)

    def _state_after(self, tokens: tuple[int, ...]) -> int:
        if tokens not in self._states:
            state = self._states.get(tokens[:-1]) if tokens else None
            new = tokens if state is None else tokens[-1:]
            spelled = b"".join(self._spelled[token] for token in new if token < len(self._spelled))
            if len(self._states) >= MAX_TEXTS:
                self._states.clear()
            self._states[tokens] = self._grammar.follow(_START if state is None else state, spelled)
        return self._states[tokens]

    def _find_rejects(self, state: int) -> NDArray[np.bool_]:
        reject = np.ones(len(self._spelled) + 1, dtype=np.bool_)
        reject[-1] = not self._grammar.complete(state)
        # Places in the order of the tokens that still fit, and their states.
        fits = np.arange(len(self._columns[0]))
        states = np.full(len(fits), state, dtype=np.int32)
        for column in self._columns:
            longer = fits < len(column)
            reject[self._order[fits[~longer]]] = False
            fits = fits[longer]
            states = self._grammar.step(states[longer], column[fits])
            fits, states = fits[states != _DEAD], states[states != _DEAD]
        reject[self._order[fits]] = False
        return reject


class _Network:
    """The automaton as it is built, from the end to the beginning: nodes, with moves on bytes and on nothing."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

        # First and last byte and next node, of each node; and nodes that are reached for free.
        self.moves: list[list[tuple[int, int, int]]] = [[]]
        self._free: list[list[int]] = [[]]

        # Node where a rule begins that goes on at another node; and rules that are being built, with what follows.
        self._entries: dict[tuple[str, int], int] = {}
        self._open: set[str] = set()

        # Nodes that read the later bytes of characters: first and last of these, and the node behind.
        self._tails: dict[tuple[bytes, bytes, int], int] = {}
        self._steps = 0

    def enter(self, name: str, behind: int = _ACCEPT, offset: int | None = None, depth: int = 0) -> int:
        """Return the node at which a rule begins that another node follows."""
        if (name, behind) in self._entries:
            return self._entries[name, behind]
        rule = self._rule(name, offset)
        if name in self._open:
            raise self._rules.error(
                offset or 0,
                f"the rule {name!r:.60} contains itself elsewhere than at the end of an alternative: write what is"
                " repeated with * or +",
            )
        # Known before it is built: a rule that ends with itself leads back here.
        entry = self._entries[name, behind] = self._node()
        self._open.add(name)
        self._free[entry].append(self._build(rule, behind, depth + 1))
        self._open.discard(name)
        return entry

    def check_references(self, name: str) -> None:
        """Raise ConfigError where a rule, used or not, names one that is missing."""
        pending: list[Item] = [self._rules.rules[name]]
        while pending:
            match pending.pop():
                case Reference(other, offset):
                    self._rule(other, offset)
                case Repetition(item):
                    pending.append(item)
                case Group(alternatives):
                    pending.extend(item for sequence in alternatives for item in sequence)

    def add_space(self, behind: int) -> int:
        """Return a node that reads a space."""
        return self._node((0x20, 0x20, behind))

    def closures(self) -> list[frozenset[int]]:
        """Return what each node reaches for free: nodes that read something, and the end; only what leads there."""
        leads = self._leading_to_end()
        self.moves = [[move for move in moves if move[2] in leads] for moves in self.moves]
        closures = []
        n_reached = 0
        for node in range(len(self.moves)):
            reached = {node}
            pending = [node]
            while pending:
                new = [free for free in self._free[pending.pop()] if free not in reached]
                reached.update(new)
                pending.extend(new)
            n_reached += len(reached)
            if n_reached > MAX_REACHED:
                raise self._too_large()
            closures.append(frozenset(n for n in reached if self.moves[n] or n == _ACCEPT))
        return closures

    def _leading_to_end(self) -> set[int]:
        before: list[list[int]] = [[] for _ in self.moves]
        for node, moves in enumerate(self.moves):
            for target in (*self._free[node], *(move[2] for move in moves)):
                before[target].append(node)
        leads = {_ACCEPT}
        pending = [_ACCEPT]
        while pending:
            new = [node for node in before[pending.pop()] if node not in leads]
            leads.update(new)
            pending.extend(new)
        return leads

    def _build(self, item: Item, behind: int, depth: int) -> int:
        """Return the node at which an item begins that another node follows."""
        self._count()
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self._rules.where} has rules too deep inside of each other: join some of them")
        match item:
            case Characters(ranges):
                return self._characters(ranges, behind)
            case Reference(name, offset):
                return self.enter(name, behind, offset, depth)
            case Group(alternatives):
                begins = []
                for sequence in alternatives:
                    begin = behind
                    for part in reversed(sequence):
                        begin = self._build(part, begin, depth + 1)
                    begins.append(begin)
                return begins[0] if len(begins) == 1 else self._choice(begins)
            case Repetition(item, least, most):
                begin = behind
                if most is None:
                    begin = self._choice([behind])
                    self._free[begin].append(self._build(item, begin, depth + 1))
                for _ in range((most or least) - least):
                    begin = self._choice([self._build(item, begin, depth + 1), behind])
                for _ in range(least):
                    begin = self._build(item, begin, depth + 1)
                return begin

    def _characters(self, ranges: Sequence[tuple[int, int]], behind: int) -> int:
        moves = []
        for first, last in ranges:
            for low, high in _byte_ranges(first, last):
                moves.append((low[0], high[0], self._tail(low[1:], high[1:], behind)))
        return self._node(*moves)

    def _tail(self, low: bytes, high: bytes, behind: int) -> int:
        if not low:
            return behind
        key = (low, high, behind)
        if key not in self._tails:
            self._tails[key] = self._node((low[0], high[0], self._tail(low[1:], high[1:], behind)))
        return self._tails[key]

    def _choice(self, nodes: list[int]) -> int:
        node = self._node()
        self._free[node] = nodes
        return node

    def _node(self, *moves: tuple[int, int, int]) -> int:
        self._count()
        self.moves.append(list(moves))
        self._free.append([])
        return len(self.moves) - 1

    def _count(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise self._too_large()

    def _too_large(self) -> ConfigError:
        return ConfigError(
            f"{self._rules.where} is too large with all its repeats: expected a small grammar; shorten it"
        )

    def _rule(self, name: str, offset: int | None) -> Group:
        rule = self._rules.rules.get(name)
        if rule is not None:
            return rule
        problem = f"there is no rule {name!r:.60}: add it, or correct its name"
        raise ConfigError(f"{self._rules.where}: {problem}") if offset is None else self._rules.error(offset, problem)


def _byte_ranges(first: int, last: int) -> list[tuple[bytes, bytes]]:
    """Return ranges of code points in UTF-8, as their first and last: each byte goes from the one's to the other's."""
    for most in (0x7F, 0x7FF, 0xFFFF):
        if first <= most < last:
            return [*_byte_ranges(first, most), *_byte_ranges(most + 1, last)]
    low, high = chr(first).encode("utf-8"), chr(last).encode("utf-8")
    for bits in range(6, 6 * len(low), 6):
        below = (1 << bits) - 1
        if first | below < last:
            # Later bytes go from their first value to their last, or else the character is split off.
            if first & below:
                return [*_byte_ranges(first, first | below), *_byte_ranges((first | below) + 1, last)]
            if last & below != below:
                return [*_byte_ranges(first, (last & ~below) - 1), *_byte_ranges(last & ~below, last)]
    return [(low, high)]
