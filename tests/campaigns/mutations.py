"""Ways to damage a file: of its bytes, of its text, and of what stands in its place. Deterministic by a random.Random."""
import os
import re
import shutil
import socket
import struct

HUGE = [b"0", b"-1", b"-0", b"1e999", b"-1e999", b"1e308", b"1e-320", b"NaN", b"-Infinity", b"0.5", b"2147483647", b"2147483648",
        b"-2147483649", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"18446744073709551615",
        b"18446744073709551616", b"999999999999999999999999", b"9" * 4000, b"0x10", b"1_000", b"+1", b"null", b"true", b'"1"', b"[]", b"{}"]
WORDS = [b'""', b"null", b"0", b"[]", b"{}", b"true", b'"' + b"a" * 100000 + b'"', b'"../outside.txt"', b'"/etc/passwd"', b'"%s%n%d"', b'"a/b"', b'".."',
         b'"\\u0000"', b'"\\ud800"', b'"\xff\xfe"', b'"$(touch ../outside.txt)"', b'"`touch ../outside.txt`"', b'"x\\n\\u001b[31m"']


def place(random, data):
    return random.randrange(len(data) + 1)


def piece(random, data, most=64):
    at = place(random, data)
    return at, min(len(data), at + 1 + random.randrange(most))


# --- bytes -----------------------------------------------------------------------------------------------------------


def flip(random, data, _):
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def truncate(random, data, _):
    return data[: place(random, data) if random.random() < 0.7 else max(0, len(data) - 1 - random.randrange(16))]


def remove(random, data, _):
    a, b = piece(random, data)
    return data[:a] + data[b:]


def repeat(random, data, _):
    a, b = piece(random, data)
    return data[:b] + data[a:b] * random.choice([1, 1, 2, 1000]) + data[b:]


def swap(random, data, _):
    a, b = sorted([place(random, data), place(random, data)])
    n = min(b - a, len(data) - b, 1 + random.randrange(256))
    return data[:a] + data[b : b + n] + data[a + n : b] + data[a : a + n] + data[b + n :]


def insert(random, data, _):
    at = place(random, data)
    return data[:at] + random.randbytes(1 + random.randrange(16)) + data[at:]


def splice(random, data, others):
    other = random.choice(others)
    a, b = piece(random, other, 512)
    at = place(random, data)
    return data[:at] + other[a:b] + data[at:]


def zeros(random, data, _):
    a, b = piece(random, data, 4096)
    return data[:a] + bytes(b - a) + data[b:]


def number_of_8_bytes(random, data, _):
    at = random.randrange(max(1, len(data) // 8)) * 8 if random.random() < 0.5 else 0
    return data[:at] + struct.pack("<Q", random.choice([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, len(data), len(data) - 7])) + data[at + 8 :]


def append(random, data, _):
    return data + random.choice([b"\0", b"\n", b"{}", random.randbytes(8), bytes(4096), data])


# --- text ------------------------------------------------------------------------------------------------------------


def exchange(random, data, pattern, values):
    found = list(re.finditer(pattern, data))
    if not found:
        return flip(random, data, None)
    m = random.choice(found)
    return data[: m.start()] + random.choice(values) + data[m.end() :]


def number(random, data, _):
    return exchange(random, data, rb"-?\b\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b", HUGE)


def word(random, data, _):
    return exchange(random, data, rb'"[^"\n]*"', WORDS)


def twice(random, data, _):
    """A key that is there twice, with the same or another value."""
    found = list(re.finditer(rb'"[^"\n]+":\s*(?:[-\w.]+|"[^"\n]*")', data))
    if not found:
        return line(random, data, None)
    m = random.choice(found)
    value = m.group() if random.random() < 0.3 else m.group().split(b":")[0] + b": " + random.choice(HUGE)
    return data[: m.start()] + value + b", " + data[m.start() :]


def deep(random, data, _):
    depth = random.choice([100, 201, 10000, 1000000])
    opening, closing = random.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")])
    value = opening * depth + b"1" + closing * random.choice([depth, 0])
    return exchange(random, data, rb"-?\b\d+(?:\.\d+)?\b", [value]) if random.random() < 0.7 else value


def line(random, data, _):
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return repeat(random, data, None)
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            lines[i] = lines[i].rstrip(b"\r\n") * random.choice([2, 1000]) + b"\n"
    return b"".join(lines)


def odd(random, data, _):
    at = place(random, data)
    return random.choice([b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), data[:at] + b"\0" + data[at:], data[:at] + b"a" * 1000000 + data[at:],
                          data.decode("latin1").encode("utf-16"), data.replace(b" ", b"\t"), data[:at] + b"\xed\xa0\x80" + data[at:]])


BYTES = [flip, flip, truncate, remove, repeat, swap, insert, splice, zeros, number_of_8_bytes, append]
TEXT = [flip, truncate, remove, repeat, swap, insert, splice, append, number, number, number, word, word, twice, deep, line, odd]


def safetensors_header(random, data, others):
    """Its JSON header damaged as a text, its length put right, so that the damage is met behind the first check."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) > 8 else 0
    if not 0 < size <= len(data) - 8:
        return flip(random, data, others)
    header = random.choice([number, number, word, twice, deep, swap, repeat, remove])(random, data[8 : 8 + size], others)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def damaged(random, data, others):
    """One to three changes of the contents of a file; returns the names of the changes and what became of it."""
    is_text = b"\0" not in data[:4096]
    ways = TEXT if is_text else BYTES
    if not is_text and data[8:9] == b"{":
        ways = [*BYTES, *[safetensors_header] * 6]
    names = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        way = random.choice(ways)
        names.append(way.__name__)
        data = way(random, data, others)
    return "+".join(names), data


# --- what stands in a file's place -----------------------------------------------------------------------------------

PLACES = ["missing", "empty", "folder", "pipe", "loop", "endless", "noise", "socket", "hole", "outside", "other", "zeroed", "not a link's end"]


def replaced(random, path, place_, others, outside):
    """Puts something else where `path` was."""
    size = path.stat().st_size
    other = path.parent / "moved-away"
    path.rename(other)
    match place_:
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "endless":
            path.symlink_to("/dev/zero")
        case "noise":
            path.symlink_to("/dev/urandom")
        case "socket":
            here = os.getcwd()
            os.chdir(path.parent)  # names of sockets are short
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(path.name)
            os.chdir(here)
        case "hole":
            with open(path, "wb") as f:
                f.truncate(random.choice([1 << 40, 200 << 20, size + 4096]))
        case "outside":
            path.symlink_to(outside)
        case "other":
            shutil.copyfile(random.choice(others), path)
        case "zeroed":
            path.write_bytes(bytes(size))
        case "not a link's end":
            path.symlink_to("nowhere")
    other.unlink()
