package unitask_test

import (
	"encoding/json"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testarchive"
)

// BenchmarkEgressBody transfers a large body between a machine and a host with a bound secret, and the same host
// spliced, in turn. The ratio is the result.
func BenchmarkEgressBody(b *testing.B) {
	needVM(b)
	bodies := testarchive.Open(b, "testdata/egressbench.txtar").Text("bodies.js")
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
