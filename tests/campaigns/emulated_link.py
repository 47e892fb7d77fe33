#!/usr/bin/env python3
"""A network between two network namespaces that loses, delays, doubles, reorders, damages or holds back packets, as netem does, where
the kernel has no netem: a TUN device in each namespace, and this program between them.

    emulated_link.py NAMESPACE ADDRESS NAMESPACE ADDRESS [--loss P] [--duplicate P] [--corrupt P] [--reorder P] [--delay-ms D]
        [--jitter-ms J] [--rate-Mbps R] [--seed N]

P is a share of the packets of each direction, from 0 to 1. Reordered packets overtake those that are delayed. Prints "ready" once packets
pass, and on SIGTERM one line of JSON: of the packets that came, how many were lost, doubled, damaged and overtook others. Needs root,
`ip` and /dev/net/tun.
"""
import argparse
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000
DEVICE = "sxc-tun"
QUEUE = 1000  # packets on their way in one direction; more are lost, as in a switch


class Ended(Exception):
    pass


def enter(namespace):
    with open(f"/var/run/netns/{namespace}", "rb") as its:
        if ctypes.CDLL(None, use_errno=True).setns(its.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


def device(namespace, own, other):
    """A TUN device inside the namespace, open here: one packet a read or write."""
    enter(namespace)
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "address", "add", own, "peer", other, "dev", DEVICE], check=True)
    subprocess.run(["ip", "link", "set", DEVICE, "up", "txqueuelen", str(QUEUE)], check=True)
    return file


class Direction:
    """Packets on their way to `to`. Times are of the steady clock, in seconds."""

    def __init__(self, to, options, chance, counts):
        self.to, self.options, self.chance, self.counts = to, options, chance, counts
        self.under_way, self.order, self.free_at = [], itertools.count(), 0.0

    def take(self, packet, now):
        options, chance = self.options, self.chance
        self.counts["packets"] += 1
        if chance.random() < options.loss or len(self.under_way) >= QUEUE:
            self.counts["lost"] += 1
            return
        if chance.random() < options.corrupt:
            self.counts["damaged"] += 1
            packet = bytearray(packet)
            packet[chance.randrange(len(packet))] ^= 1 << chance.randrange(8)
        copies = 1
        if chance.random() < options.duplicate:
            self.counts["doubled"] += 1
            copies = 2
        for _ in range(copies):
            self.send(bytes(packet), now)

    def send(self, packet, now):
        options, chance = self.options, self.chance
        at = now
        if options.rate_Mbps > 0:
            at = self.free_at = max(now, self.free_at) + len(packet) * 8e-6 / options.rate_Mbps
        if self.under_way and chance.random() < options.reorder:
            self.counts["overtook"] += 1
        else:
            at += 1e-3 * max(0.0, options.delay_ms + chance.uniform(-options.jitter_ms, options.jitter_ms))
        heapq.heappush(self.under_way, (at, next(self.order), packet))

    def deliver(self, now):
        while self.under_way and self.under_way[0][0] <= now:
            packet = heapq.heappop(self.under_way)[2]
            try:
                os.write(self.to, packet)
            except OSError:  # what is damaged in its head is no packet, and a full device loses what comes
                self.counts["lost"] += 1


def pass_packets(files, options, counts):
    chance = random.Random(options.seed)
    directions = {files[0]: Direction(files[1], options, chance, counts), files[1]: Direction(files[0], options, chance, counts)}
    while True:
        due = min((d.under_way[0][0] for d in directions.values() if d.under_way), default=None)
        wait_s = None if due is None else max(0.0, due - time.monotonic())
        for file in select.select(files, [], [], wait_s)[0]:
            try:
                while True:
                    directions[file].take(os.read(file, 65536), time.monotonic())
            except BlockingIOError:
                pass
        for direction in directions.values():
            direction.deliver(time.monotonic())


def ended(*_):
    raise Ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for end in ("first", "second"):
        parser.add_argument(f"{end}_namespace")
        parser.add_argument(f"{end}_address")
    for share in ("loss", "duplicate", "corrupt", "reorder"):
        parser.add_argument(f"--{share}", type=float, default=0.0)
    for number in ("delay-ms", "jitter-ms", "rate-Mbps"):
        parser.add_argument(f"--{number}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, ended)
    files = [device(options.first_namespace, options.first_address, options.second_address),
             device(options.second_namespace, options.second_address, options.first_address)]
    counts = dict.fromkeys(["packets", "lost", "doubled", "damaged", "overtook"], 0)
    print("ready", flush=True)
    try:
        pass_packets(files, options, counts)
    except Ended:
        print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
