package unitask_test

import (
	"encoding/json"
	"testing"

	"github.com/unitask/unitask"
)

// bodies downloads and uploads a body of 50 MiB, and prints the MB/s of each.
const bodies = `
const https = require("https");
const rate = (n, from) => n / 1e6 / (Number(process.hrtime.bigint() - from) / 1e9);
const ask = (options, body) => new Promise((ok, bad) => {
  const begin = process.hrtime.bigint();
  let n = 0;
  const r = https.request({ host: "good.example", ...options }, (a) => a.on("data", (d) => n += d.length).on("end", () => ok(rate(body ? body.length : n, begin))));
  r.on("error", bad).end(body);
});
(async () => {
  const sent = Buffer.alloc(50 << 20, "0123456789abcdef");
  await ask({ path: "/" });
  console.log(JSON.stringify({ down: await ask({ path: "/big" }), up: await ask({ path: "/digest", method: "POST" }, sent) }));
})();`

// BenchmarkEgressBody transfers a large body between a machine and a host with a bound secret, and the same host
// spliced, in turn. The ratio is the result.
func BenchmarkEgressBody(b *testing.B) {
	needVM(b)
	web := newSite(b)
	rt, err := unitask.Open(unitask.Options{Home: newHome(b), Upstream: web.upstream})
	if err != nil {
		b.Fatal(err)
	}
	defer rt.Close()
	for _, kernel := range kernels(b) {
		b.Run(string(kernel), func(b *testing.B) {
			type rates struct{ Down, Up float64 }
			var broker, splice rates
			n := 0.0
			for b.Loop() {
				for _, way := range []*rates{&splice, &broker} {
					req := unitask.Request{Kernel: kernel, Code: bodies, CA: web.ca, AllowNet: []string{"good.example"}, MemoryMB: 512}
					if way == &broker {
						req.Secrets, req.SecretHosts = map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"},
							map[string][]string{"KEY": {"good.example"}}
					}
					res, err := rt.Run(b.Context(), req, unitask.IO{})
					var r rates
					if err != nil || json.Unmarshal(res.Stdout, &r) != nil || r.Down == 0 || r.Up == 0 {
						b.Fatalf("%v: %s %s", err, res.Stdout, res.Stderr)
					}
					way.Down, way.Up = way.Down+r.Down, way.Up+r.Up
				}
				n++
			}
			b.ReportMetric(splice.Down/n, "spliced-down-MB/s")
			b.ReportMetric(splice.Up/n, "spliced-up-MB/s")
			b.ReportMetric(broker.Down/splice.Down, "down-ratio")
			b.ReportMetric(broker.Up/splice.Up, "up-ratio")
		})
	}
}
