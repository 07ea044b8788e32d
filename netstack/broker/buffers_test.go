package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
)

// A thousand incomplete answers hold few buffers: 128 connections may have twelve times as many.
func TestWaitingStreams(t *testing.T) {
	const connections, streams = 10, maxStreams
	goOn := make(chan struct{})
	var sent sync.WaitGroup
	sent.Add(connections * streams)
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			return
		}
		_, _ = w.Write(bytes.Repeat([]byte("g"), 40_000)) // so that buffers are in use, and some text is undecided
		_ = http.NewResponseController(w).Flush()
		sent.Done()
		<-goOn
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: everywhere}}})
	memory := func() int64 {
		runtime.GC()
		runtime.GC() // the pools' second chance
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// ask starts n answers, and returns the memory that they hold, including the test's clients and server.
	ask := func(client func() *http.Client) int64 {
		before := memory()
		var group, begun sync.WaitGroup
		begun.Add(connections * streams)
		for range connections {
			c := client()
			c.Timeout = 0
			do(t, c, "GET", "https://"+host+"/first", nil, "") // otherwise each one makes a connection
			for range streams {
				group.Go(func() {
					res, err := c.Get("https://" + host + "/")
					if err != nil {
						t.Error(err)
						begun.Done()
						return
					}
					defer res.Body.Close()
					if _, err := io.ReadFull(res.Body, make([]byte, 39_000)); err != nil {
						t.Error(err)
					}
					begun.Done()
					_, _ = io.Copy(io.Discard, res.Body)
				})
			}
		}
		sent.Wait()
		begun.Wait()
		held := memory() - before
		close(goOn)
		group.Wait()
		return held
	}
	with := ask(func() *http.Client { return r.client(true) })
	goOn = make(chan struct{})
	sent.Add(connections * streams)
	without := ask(func() *http.Client {
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: o.roots},
			DisableCompression: true,
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return splice(ctx, o) }}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	})
	const most = 64 << 20 // maxRequests is twice as many; half of them would have small buffers
	t.Logf("%d answers at once hold %d KiB by the broker, %d KiB spliced", connections*streams, with>>10, without>>10)
	if with-without > most {
		t.Errorf("%d KiB more than spliced; %d are the most", (with-without)>>10, most>>10)
	}
}

// Above the limits a request is refused with an explanation, and the next one is accepted.
func TestManyRequests(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, _ := recorder(t, originConfig{})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
		c, n := r.client(h2), 0
		for _, a := range []struct {
			requests, bodies int64
			body, want       string
		}{
			{maxRequests - 1, 0, "", "ok"}, {maxRequests, 0, "",
				"unitask: more than 2048 requests at once in one run: wait for some to end\n"},
			{0, maxBodies - 1, "body", "ok"}, {0, maxBodies, "body",
				"unitask: more than 1024 requests with bodies at once in one run: wait for some to end\n"},
			{0, maxBodies, "", "ok"},
		} {
			r.requests.n.Store(a.requests)
			r.bodies.n.Store(a.bodies)
			res, text := do(t, c, "POST", "https://"+host+"/", nil, a.body)
			n++
			if x := r.logged(n); text != a.want || (res.StatusCode == 503) != (a.want != "ok") || x.Allowed != (a.want == "ok") {
				t.Errorf("%+v: %d %s %+v", a, res.StatusCode, text, x)
			}
			if requests, bodies := r.requests.n.Load(), r.bodies.n.Load(); requests != a.requests || bodies != a.bodies {
				t.Errorf("%+v: %d requests and %d bodies are left", a, requests, bodies)
			}
		}
	})
}

func TestBuffers(t *testing.T) {
	var b buffers
	var got [][]byte
	for range maxBig + 2 {
		got = append(got, b.Get())
	}
	if len(got[0]) != bigBuffer || len(got[maxBig-1]) != bigBuffer || len(got[maxBig]) != smallBuffer ||
		len(got[maxBig+1]) != smallBuffer {
		t.Errorf("%d %d %d", len(got[0]), len(got[maxBig]), len(got[maxBig+1]))
	}
	for _, one := range got {
		b.Put(one)
	}
	if n := b.big.Load(); n != 0 || len(b.Get()) != bigBuffer {
		t.Errorf("%d are still big", n)
	}
}
