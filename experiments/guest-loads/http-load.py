"A server of one page on CPU 1 and a client on CPU 0, over one connection: http-load.py SECONDS; prints requests/s"
import http.client, http.server, os, socket, sys, time

seconds = float(sys.argv[1])


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    wbufsize, disable_nagle_algorithm = 65536, True

    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '5')
        self.end_headers()
        self.wfile.write(b'page\n')

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(('127.0.0.1', 0), Page)
if (child := os.fork()) == 0:
    os.sched_setaffinity(0, [1])
    server.serve_forever()
os.sched_setaffinity(0, [0])
client = http.client.HTTPConnection('127.0.0.1', server.server_port)
client.connect()
client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
begin, done = time.monotonic(), 0
try:
    while time.monotonic() < begin + seconds:
        client.request('GET', '/')
        client.getresponse().read()
        done += 1
finally:
    os.kill(child, 9)
    os.wait()
print(f'{done / (time.monotonic() - begin):.0f}')
