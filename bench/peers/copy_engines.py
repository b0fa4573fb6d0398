#!/usr/bin/env python3
"""The limit of exchanges by copies: what the copy engines of all cards of a host reach together, without slots and flags.

Every card sends the same number of bytes to others at once, in pieces: to one peer, or to all of them by a stream for each
(`all`) or by one stream in turns (`turns`); `in step`: a turn begins once the peer has received the turn before; pushed by
the sender's engines or pulled by the receiver's. Prints what a card sends in GB/s, the median of several rounds, for each
size of pieces. Uses libcudart alone.
"""

import argparse
import ctypes
import statistics
import time

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DEVICE_TO_DEVICE = 3
NON_BLOCKING = 1
NO_TIMING = 2


class Runtime:
    """Calls of libcudart; an error ends the program with its name."""

    def __init__(self):
        for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12"):
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise SystemExit("no libcudart on LD_LIBRARY_PATH")
        self.library.cudaGetErrorName.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            error = function(*arguments)
            if error != 0:
                raise SystemExit(f"{name}: {self.library.cudaGetErrorName(error).decode()}")

        return call

    def made(self, name, *arguments):
        """What a call returns through its first argument, a pointer."""
        value = ctypes.c_void_p()
        getattr(self, name)(ctypes.byref(value), *arguments)
        return value


class Cards:
    """Buffers and streams of every card: `lanes[card][i]` for its exchange with the i-th peer."""

    def __init__(self, cuda, count, bytes_per_card):
        self.cuda, self.count = cuda, count
        self.source, self.target, self.lanes, self.begun, self.ended = [], [], [], [], []
        self.turns = [[] for _ in range(count)]
        for card in range(count):
            cuda.cudaSetDevice(card)
            for peer in range(count):
                if peer != card:
                    cuda.cudaDeviceEnablePeerAccess(peer, 0)
            self.source.append(cuda.made("cudaMalloc", ctypes.c_size_t(bytes_per_card)).value)
            self.target.append(cuda.made("cudaMalloc", ctypes.c_size_t(bytes_per_card)).value)
            self.lanes.append([cuda.made("cudaStreamCreateWithFlags", NON_BLOCKING) for _ in range(count - 1)])
            self.begun.append([cuda.made("cudaEventCreateWithFlags", 0) for _ in range(count - 1)])
            self.ended.append([cuda.made("cudaEventCreateWithFlags", 0) for _ in range(count - 1)])
        cuda.cudaSetDevice(0)
        self.gate = cuda.made("cudaStreamCreateWithFlags", NON_BLOCKING)
        self.open = cuda.made("cudaEventCreateWithFlags", 0)

    def turn_event(self, card, turn):
        while len(self.turns[card]) <= turn:
            self.cuda.cudaSetDevice(card)
            self.turns[card].append(self.cuda.made("cudaEventCreateWithFlags", NO_TIMING))
        return self.turns[card][turn]

    def seconds_in_step(self, copies, hold):
        """As seconds(), of one lane: turn t of a card waits for turn t - 1 of the next card, which is to the same peer."""
        cuda = self.cuda
        cuda.cudaSetDevice(0)
        cuda.cudaLaunchHostFunc(self.gate, hold, None)
        cuda.cudaEventRecord(self.open, self.gate)
        work = [list(copies(card)) for card in range(self.count)]
        for turn in range(len(work[0])):
            for card in range(self.count):
                self.turn_event(card, turn)
        for card in range(self.count):
            cuda.cudaSetDevice(card)
            cuda.cudaStreamWaitEvent(self.lanes[card][0], self.open, 0)
            cuda.cudaEventRecord(self.begun[card][0], self.lanes[card][0])
        for turn in range(len(work[0])):
            for card in range(self.count):
                cuda.cudaSetDevice(card)
                _, to, source, size = work[card][turn]
                if turn > 0:
                    # The sender of the turn before to this turn's peer.
                    before = 1 if turn % (self.count - 1) != 0 else 2
                    cuda.cudaStreamWaitEvent(self.lanes[card][0], self.turns[(card + before) % self.count][turn - 1], 0)
                cuda.cudaMemcpyAsync(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size),
                                     DEVICE_TO_DEVICE, self.lanes[card][0])
                cuda.cudaEventRecord(self.turns[card][turn], self.lanes[card][0])
        for card in range(self.count):
            cuda.cudaSetDevice(card)
            cuda.cudaEventRecord(self.ended[card][0], self.lanes[card][0])
        slowest = 0.0
        for card in range(self.count):
            cuda.cudaSetDevice(card)
            cuda.cudaDeviceSynchronize()
            slowest = max(slowest, self.elapsed(card, 0, 0))
        return slowest

    def seconds(self, copies, hold):
        """`copies(card)`: (lane, to, from, bytes) in order. The slowest card's time; all begin together, once all is enqueued."""
        cuda = self.cuda
        cuda.cudaSetDevice(0)
        cuda.cudaLaunchHostFunc(self.gate, hold, None)
        cuda.cudaEventRecord(self.open, self.gate)
        used = []
        for card in range(self.count):
            cuda.cudaSetDevice(card)
            work = list(copies(card))
            lanes = sorted({lane for lane, _, _, _ in work})
            used.append(lanes)
            for lane in lanes:
                cuda.cudaStreamWaitEvent(self.lanes[card][lane], self.open, 0)
                cuda.cudaEventRecord(self.begun[card][lane], self.lanes[card][lane])
            for lane, to, source, size in work:
                cuda.cudaMemcpyAsync(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size),
                                     DEVICE_TO_DEVICE, self.lanes[card][lane])
            for lane in lanes:
                cuda.cudaEventRecord(self.ended[card][lane], self.lanes[card][lane])
        slowest = 0.0
        for card in range(self.count):
            cuda.cudaSetDevice(card)
            cuda.cudaDeviceSynchronize()
            slowest = max([slowest] + [self.elapsed(card, begun, ended) for begun in used[card] for ended in used[card]])
        return slowest

    def elapsed(self, card, begun, ended):
        ms = ctypes.c_float()
        self.cuda.cudaEventElapsedTime(ctypes.byref(ms), self.begun[card][begun], self.ended[card][ended])
        return ms.value / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", type=int, help="default: all")
    parser.add_argument("--mib", type=int, default=768, help="that a card sends in a round")
    parser.add_argument("--pieces", type=int, nargs="+", default=[4, 8, 16, 32, 64], help="MiB of a piece")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cuda = Runtime()
    count = ctypes.c_int()
    cuda.cudaGetDeviceCount(ctypes.byref(count))
    cards = arguments.cards or count.value
    if cards < 2:
        raise SystemExit("needs two cards")
    total = arguments.mib << 20
    everything = Cards(cuda, cards, total)
    # While the gate is shut, everything is enqueued.
    hold = CALLBACK(lambda _: time.sleep(0.1))

    def plan(peers, streams, pull, piece):
        def copies(card):
            at = 0
            while at < total:
                for i in range(peers):
                    if at >= total:
                        return
                    size = min(piece, total - at)
                    other = (card + 1 + i) % cards
                    if pull:
                        yield i % streams, everything.target[card] + at, everything.source[other] + at, size
                    else:
                        yield i % streams, everything.target[other] + at, everything.source[card] + at, size
                    at += size

        return copies

    print(f"{cards} cards, {arguments.mib} MiB of each, GB/s of a card: median (lowest to highest)")
    print(f"{'peers':<22}" + "".join(f"{piece:>22} MiB" for piece in arguments.pieces))
    for pull in (False, True):
        ways = [("one", 1, 1)] + ([("all", cards - 1, cards - 1), ("turns", cards - 1, 1), ("in step", cards - 1, 1)]
                                  if cards > 2 else [])
        for name, peers, streams in ways:
            measure = everything.seconds_in_step if name == "in step" else everything.seconds
            row = []
            for piece in arguments.pieces:
                copies = plan(peers, streams, pull, piece << 20)
                rates = [total / measure(copies, hold) / 1e9 for _ in range(arguments.rounds + 1)][1:]
                row.append(f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})")
            print(f"{name + (', pulled' if pull else ', pushed'):<22}" + "".join(f"{text:>26}" for text in row),
                  flush=True)


if __name__ == "__main__":
    main()
