"""Where SGLang's own router sends requests that are held, in front of three stub servers.

    pip install --target DIR sglang-router==0.3.2 setproctitle uvicorn
    python tests/parity/routers/ask_sglang.py DIR > tests/parity/routers/sglang.json

Requests are sent one after the other and end when the case says so. Workers are named in the order in which they were
first chosen: the router permutes them anew at each start, and of equals takes the first in its own order.
"""

import http.server
import json
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request

NUM_WORKERS = 3
CHARACTERS_PER_TOKEN, STRETCH_TOKENS = 4, 16


def text_of(stretches, salt):
    """A prompt of named stretches of 16 tokens of 4 characters."""
    words = []
    for end in range(len(stretches)):
        draw = random.Random(f"{salt}/{stretches[: end + 1]}")
        words.append("".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(64)))
    return "".join(words)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers a completion when the case lets it end."""

    protocol_version = "HTTP/1.1"
    taken, gates, lock = [], {}, threading.Lock()

    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path.startswith("/v1/models"):
            self.answer({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "x"}]})
        else:
            self.answer({"status": "ok", "model_path": "m"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name = body.get("user")
        with self.lock:
            self.taken.append((name, self.server.server_address[1]))
        if name in self.gates:
            self.gates[name].wait(60)
        choice = {"index": 0, "text": "a", "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"id": "x", "object": "text_completion", "choices": [choice], "usage": usage})


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


def random_case(seed):
    """Prompts of stretches and endings, in order."""
    draw, live, events = random.Random(seed), [], []
    beginnings = [[draw.randrange(100) for _ in range(draw.randrange(1, 6))] for _ in range(4)]
    for number in range(40):
        if live and draw.random() < 0.35:
            events.append({"ends": live.pop(draw.randrange(len(live)))})
            continue
        stretches = draw.choice(beginnings)[: draw.randrange(1, 6)]
        stretches = stretches + [1000 * number + n for n in range(draw.randrange(0, 6))]
        live.append(number)
        events.append({"sent": number, "stretches": stretches})
    return events


def ask(case, salt, router_folder, thresholds):
    """The worker of every request, in order."""
    servers = [Server(("127.0.0.1", 0), Stub) for _ in range(NUM_WORKERS)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ports = [server.server_address[1] for server in servers]
    port, metrics_port = free_port(), free_port()
    words = ["--worker-urls", *(f"http://127.0.0.1:{each}" for each in ports), "--host", "127.0.0.1"]
    words += ["--port", str(port), "--prometheus-port", str(metrics_port), "--policy", "cache_aware"]
    words += ["--balance-abs-threshold", str(thresholds[0]), "--balance-rel-threshold", str(thresholds[1])]
    router = subprocess.Popen(
        [sys.executable, "-m", "sglang_router.launch_router", *words],
        env=dict(os.environ, PYTHONPATH=router_folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        else:
            sys.exit("the router never answered")
        time.sleep(5)  # until it has taken all workers in
        threads, workers = {}, []
        for event in case:
            if "ends" in event:
                name = f"{salt}/{event['ends']}"
                Stub.gates[name].set()
                threads[name].join()
                time.sleep(0.1)
                continue
            name, before = f"{salt}/{event['sent']}", len(Stub.taken)
            Stub.gates[name] = threading.Event()
            body = {"model": "m", "prompt": text_of(event["stretches"], salt), "max_tokens": 1, "user": name}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            threads[name] = threading.Thread(target=lambda request=request: urllib.request.urlopen(request).read())
            threads[name].start()
            while len(Stub.taken) == before:
                time.sleep(0.02)
            workers.append(ports.index(Stub.taken[-1][1]))
            time.sleep(0.05)
        for gate in Stub.gates.values():
            gate.set()
        return workers
    finally:
        router.terminate()
        router.wait()


if __name__ == "__main__":
    found = []
    for seed in range(8):
        thresholds = [(3, 1.5), (64, 1.5), (1, 1.0), (5, 3.0)][seed % 4]
        case = random_case(seed)
        workers = ask(case, seed, os.path.abspath(sys.argv[1]), thresholds)
        found.append({"thresholds": thresholds, "events": case, "workers": workers})
    print(json.dumps(found))
