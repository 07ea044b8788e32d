package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// Data that is small on the network and large in memory, and data that each notification repeats.
func TestAttackDecoding(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{})
	params := func(member string) string { return strings.Replace(listTools, `"_meta"`, member+`,"_meta"`, 1) }
	meta := func(member string) string { return strings.Replace(listTools, `"_meta":{`, `"_meta":{`+member+`,`, 1) }
	long := strings.Repeat("9", 257)
	for _, c := range []struct{ name, body, want string }{
		{"5 Mi objects", params(`"x":[` + strings.Repeat("{},", 5<<20) + `{}]`), "400"},
		{"5 Mi lists", params(`"x":[` + strings.Repeat("[],", 5<<20) + `[]]`), "400"},
		{"7 Mi numbers", params(`"x":[` + strings.Repeat("1,", 7<<20) + `1]`), "400"},
		{"2 Mi names", params(`"x":{` + strings.Repeat(`"":1,`, 2<<20) + `"":1}`), "400"},
		{"2 Mi names of one object, with blanks", params(`"x":{` + strings.Repeat("\"\" :\t1 ,", 1<<20) + `"":1}`), "400"},
		{"a batch of 5 Mi", "[" + strings.Repeat("{},", 5<<20) + "{}]", "400"},
		{"100 000 numbers", params(`"x":[` + strings.Repeat("1,", 100_000) + `1]`), "200"},
		{"text that looks like 5 Mi objects", params(`"x":"` + strings.Repeat("{},", 1<<20) + `\"{},"`), "200"},
		{"an id of 257 bytes", strings.Replace(listTools, `"id":1`, `"id":"`+long+`"`, 1), "400"},
		{"an id that is a number of 257 digits", strings.Replace(listTools, `"id":1`, `"id":`+long, 1), "400"},
		{"an id of 14 MiB", strings.Replace(listTools, `"id":1`, `"id":"`+strings.Repeat("x", 14<<20)+`"`, 1), "400"},
		{"a long id before a short one", strings.Replace(listTools, `"id":1`, `"id":"`+long+`","id":1`, 1), "400"},
		{"a long id by an escaped name", strings.Replace(listTools, `"id":1`, `"\u0069d":"`+long+`"`, 1), "400"},
		{"a token of 14 MiB", meta(`"progressToken":"` + strings.Repeat("x", 14<<20) + `"`), "400"},
		{"a token of 257 bytes", meta(`"progressToken":"` + long + `"`), "400"},
		{"a token that is a list", meta(`"progressToken":["` + long + `"]`), "400"},
		{"a token by an escaped name", meta(`"\u0070rogressToken":"` + long + `"`), "400"},
		{"a token of 200 bytes", meta(`"progressToken":"` + long[:200] + `"`), "200"},
		{"a notification of 1 MiB", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"` +
			strings.Repeat("x", 1<<20) + `"}}`, "400"},
		{"an answer of 1 MiB to nothing", `{"jsonrpc":"2.0","id":7,"result":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`,
			"400"},
	} {
		code, _, _ := send(t, "POST", url+"/mcp", c.body, revision, named)
		attack.Check(t, c.name, c.want, fmt.Sprint(code))
	}
}

// Long artifacts come in pages, whatever their contents.
func TestAttackLargeArtifact(t *testing.T) {
	rt := bare(t)
	id := recorded(t, rt, unitask.LocalOwner(os.Geteuid()), record.ViaMCP)
	cs := inMemory(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), nil)
	for name, data := range map[string][]byte{"escapes": bytes.Repeat([]byte{1}, 5<<20),
		"bytes": bytes.Repeat([]byte{0xff, 0x00}, 3<<20), "a b?.txt": []byte(strings.Repeat("üx\n", 1<<20)),
		"small": []byte("x")} {
		if err := os.WriteFile(filepath.Join(rt.Runs().Dir(), id, record.ArtifactsDir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		var got []byte
		pages, most := 0, 0
		for uri := "unitask://runs/" + id + "/artifacts/" +
			strings.NewReplacer(" ", "%20", "?", "%3F").Replace(name); uri != ""; pages++ {
			res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
			if err != nil {
				t.Fatal(uri, err)
			}
			c := res.Contents[0]
			got, most = append(append(got, c.Text...), c.Blob...), max(most, len(c.Text)+len(c.Blob))
			uri, _ = c.Meta["unitask/next"].(string)
			if total, ok := c.Meta["unitask/total"].(float64); uri != "" && (!ok || int(total) != len(data)) {
				t.Errorf("%s: total %v", name, c.Meta)
			}
		}
		if !bytes.Equal(got, data) || pages < len(data)>>20 {
			t.Errorf("%s: %d bytes of %d on %d pages", name, len(got), len(data), pages)
		}
		attack.Check(t, "the artifact "+name+" at once", "1 MiB at most",
			map[bool]string{true: "1 MiB at most"}[most <= 1<<20])
	}
}

// The calls of a batch are limited, and each of their answers reserves its own room.
func TestAttackBatch(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{})
	const old = "2025-03-26"
	_, header, _ := send(t, "POST", url+"/mcp", strings.Replace(initialize, "2025-11-25", old, 1))
	session, version := "Mcp-Session-Id: "+header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version: "+old
	send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session, version)
	for n, want := range map[int]string{2: "200 2", 50: "200 50", 51: "400 0", 10_000: "400 0"} {
		var calls []string
		for i := range n {
			calls = append(calls, fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d-%d","method":"ping"}`, n, i))
		}
		code, _, answer := send(t, "POST", url+"/mcp", " ["+strings.Join(calls, ",")+"]", session, version)
		attack.Check(t, fmt.Sprintf("a batch of %d calls", n), want, fmt.Sprint(code, " ", strings.Count(answer, `"result"`)))
	}
	synctest.Test(t, func(t *testing.T) {
		b := mcp.NewBudget(256<<20, 0)
		over, errs := b.Answer(t.Context(), "mallory", 6<<20, 6<<20, 6<<20, 6<<20, 6<<20)
		said := ""
		for _, err := range errs {
			if said += " yes"; err != nil {
				said = strings.TrimSuffix(said, "yes") + limitOf(err)
			}
		}
		attack.Check(t, "five large answers of a batch, within a quarter", " yes yes yes memory memory", said)
		over()
		attack.Check(t, "what they held, once the request is over", "0", fmt.Sprint(b.Held()))
	})
}

// One caller's memory is not available to another.
func TestAttackBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mcp.NewBudget(100, 5)
		draw := func(caller string, n int64) string {
			begin := time.Now()
			err := b.Draw(t.Context(), caller, n, 10*time.Second)
			if err != nil {
				return limitOf(err)
			}
			return fmt.Sprintf("after %v", time.Since(begin))
		}
		attack.Check(t, "more memory than a caller may have", "memory", draw("mallory", 76))
		for range 3 {
			attack.Check(t, "a caller's memory", "after 0s", draw("mallory", 12))
		}
		attack.Check(t, "more of a caller that holds a quarter", "memory", draw("mallory", 1))
		attack.Check(t, "another caller's beside it", "after 0s", draw("alice", 50))
		attack.Check(t, "a caller's first small part, where there is hardly any", "after 0s", draw("erin", 5))
		attack.Check(t, "and another one's, beyond all", "after 0s", draw("frank", 5))
		attack.Check(t, "and another one's, beyond all that", "after 0s", draw("grace", 5))
		for _, name := range []string{"erin", "frank", "grace"} {
			b.Add(name, -5)
		}
		got := make(chan string, 2)
		go func() { got <- "large " + draw("bob", 40) }() // waits, and no caller with more memory overtakes it
		synctest.Wait()
		time.AfterFunc(3*time.Second, func() { b.Add("alice", -50) })
		attack.Check(t, "a large part, when another caller has given up its own", "large after 3s", <-got)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Draw(ctx, "carol", 70, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		b.Add("mallory", -36)
		b.Add("bob", -40)
		attack.Check(t, "everything was given back", "after 0s", draw("dave", 75))
	})
}

// A client that reads nothing is cut; one that reads slowly but steadily is not.
func TestAttackStalledReader(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const size = 8 << 20
	write := func(read func(net.Conn)) (n int, err error) {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go read(client)
		return mcp.Steady(c, 300*time.Millisecond).Write(make([]byte, size))
	}
	n, err := write(func(net.Conn) {})
	attack.Check(t, "a client that reads nothing", "cut",
		map[bool]string{true: "cut"}[errors.Is(err, os.ErrDeadlineExceeded) && n < size])
	n, err = write(func(c net.Conn) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := io.CopyN(io.Discard, c, size/10); err != nil {
				return
			}
			<-tick.C
		}
	})
	attack.Check(t, "a client that reads in more time than that, but does", fmt.Sprint(size, " <nil>"),
		fmt.Sprint(n, " ", err))
}

// A client that reads a byte now and then, so that it never stalls, is cut too; one on a slow line is not.
func TestAttackSlowReader(t *testing.T) {
	for _, c := range []struct {
		name    string
		first   int           // bytes that it reads at first
		take    int           // bytes
		every   time.Duration // pause between reads
		answers []int         // bytes of each
		pause   time.Duration // between them
		most    time.Duration // until the writer is done
		want    string
	}{
		{"a byte every 29 s", 0, 1, 29 * time.Second, []int{1 << 20}, 0, 31 * time.Second, "cut"},
		{"4 KiB a second", 0, 4 << 10, time.Second, []int{1 << 20}, 0, 45 * time.Second, "cut"},
		{"its first answers at once, then a byte every 29 s", 4 << 20, 1, 29 * time.Second, []int{2 << 20, 2 << 20, 1 << 20},
			0, 31 * time.Second, "cut"},
		{"small answers, a byte every 29 s", 0, 1, 29 * time.Second, []int{2, 2, 2, 2}, 0, 31 * time.Second, "cut"},
		{"20 KiB a second", 0, 20 << 10, time.Second, []int{8 << 20}, 0, time.Hour, "whole"},
		{"nothing for 25 s, then all", 0, 1 << 20, 25 * time.Second, []int{1 << 20}, 0, time.Hour, "whole"},
		{"each event after 15 s", 0, 1 << 10, 15 * time.Second, []int{1 << 10, 1 << 10, 1 << 10, 1 << 10}, 20 * time.Second,
			time.Hour, "whole"},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			gone := make(chan struct{})
			defer func() { here.Close(); <-gone }()
			go func() {
				defer close(gone)
				_, err := io.CopyN(io.Discard, there, int64(c.first))
				for err == nil {
					testwait.Pass(c.every)
					_, err = io.CopyN(io.Discard, there, int64(c.take))
				}
			}()
			steady, got, begin := mcp.Steady(here, 30*time.Second), "whole", time.Now()
			for _, size := range c.answers {
				if _, err := steady.Write(make([]byte, size)); err != nil {
					got = "cut"
					break
				}
				testwait.Pass(c.pause)
			}
			attack.Check(t, "a client that takes "+c.name, c.want, got)
			if took := time.Since(begin); took > c.most {
				t.Errorf("%s: it held its answers for %v", c.name, took)
			}
		})
	}
}

// An HTTP/2 stream gets its answer even if its handler takes longer than a client may stall. A stream that nobody reads
// is cut.
func TestSteadyStreams(t *testing.T) {
	const stall = 200 * time.Millisecond
	cut := make(chan error, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/late", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "soon ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(4 * stall):
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "late")
	})
	mux.HandleFunc("/unread", func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, 64<<20))
		cut <- err
	})
	s := httptest.NewUnstartedServer(mcp.Steadily(mux, stall))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	res, err := s.Client().Get(s.URL + "/late")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); string(text) != "soon late" || err != nil || res.ProtoMajor != 2 {
		t.Errorf("%s: %q %v", res.Proto, text, err)
	}
	if res, err = s.Client().Get(s.URL + "/unread"); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	attack.Check(t, "a stream of HTTP/2 that nobody reads", "cut", map[bool]string{true: "cut"}[<-cut != nil])
}

// The estimate of an answer's size is never too low.
func FuzzJSONSize(f *testing.F) {
	for _, s := range []string{"", "plain", "\x00\x01\"\\\n", "<&>", "\xff\xfe", "\u2028ü\U0001f600", "\ufffd"} {
		f.Add(s, []byte(s))
	}
	f.Fuzz(func(t *testing.T, s string, p []byte) {
		v := map[string]any{s: []any{s, p, map[string]int{s: 1}, &struct {
			A string `json:"a,omitempty"`
			B []string
		}{s, []string{s}}, time.Now(), 1.5, true, nil, json.RawMessage(`{}`)}}
		text, err := json.Marshal(v)
		if err != nil {
			t.Skip(err)
		}
		if n := mcp.JSONSize(v); n < int64(len(text)) {
			t.Errorf("%d for %d bytes: %.100q", n, len(text), text)
		}
	})
}

// A scan of JSON text finds the same as decoding it.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"a":{"b":[1,"}"]},"c":"\"","\u0061":null}`, ` { "a" : [ ] , "b" : { } } `,
		`[]`, `1`, `{}`, `{"a":-1.5e3,"b":true}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			t.Skip()
		}
		want, got := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		_ = json.Unmarshal(text, &want)
		mcp.Members(text, func(name string, value []byte) { got[name] = value })
		if len(want) != len(got) {
			t.Fatalf("%q: %d members, not %d", text, len(got), len(want))
		}
		for name, value := range want {
			if !bytes.Equal(bytes.TrimSpace(got[name]), bytes.TrimSpace(value)) {
				t.Errorf("%q: %q is %q, not %q", text, name, got[name], value)
			}
		}
	})
}
