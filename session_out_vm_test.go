package unitask_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// cameBack lists the files of /out that came back with a step: names and contents, and refused ones.
func cameBack(t *testing.T, rt *unitask.Runtime, res *unitask.Result) string {
	t.Helper()
	var b strings.Builder
	for _, a := range res.Artifacts {
		f, err := rt.Runs().OpenArtifact(res.RunID, a.Path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(f)
		f.Close()
		if err != nil || int64(len(text)) != a.Size {
			t.Errorf("%s: %d bytes of %d, %v", a.Path, len(text), a.Size, err)
		}
		if len(text) > 20 {
			text = fmt.Appendf(nil, "%d bytes", len(text))
		}
		fmt.Fprintf(&b, "%s=%s ", a.Path, text)
	}
	for _, r := range res.ArtifactsRefused {
		fmt.Fprintf(&b, "%s: %s ", r.Path, r.Reason)
	}
	return strings.TrimSpace(b.String())
}

// oddFiles leaves a file with an old date, a link, a pipe and an unreadable file.
const oddFiles = "touch -d 2001-01-01 /tmp/old; mv /tmp/old /out/old; ln -s /etc/passwd /out/link; mkfifo /out/pipe; " +
	"echo x > /out/dark; chmod 0 /out/dark"

// The files that each step leaves in /out come back with it. Earlier files do not come again.
func TestSessionOut(t *testing.T) {
	t.Parallel()
	t.Run("linux", func(t *testing.T) {
		needClones(t)
		rt := sessionRuntime(t)
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "shell", Image: "shell",
			MaxArtifacts: 1 << 20}})
		step := func(s *unitask.Session, code, want string) {
			t.Helper()
			res, err := s.Run(t.Context(), unitask.Step{Code: code, Timeout: 5 * time.Second})
			if err != nil {
				t.Fatalf("%s: %v", code, err)
			}
			if is := cameBack(t, rt, res); is != want {
				t.Errorf("%s: %q, want %q; %q", code, is, want, res.Stderr)
			}
			rec, err := rt.Runs().Get(res.RunID)
			if err != nil || len(res.Artifacts) > 0 && !strings.Contains(string(rec.Result), res.Artifacts[0].SHA256) {
				t.Errorf("%s: its record: %s, %v", code, rec.Result, err)
			}
		}
		step(s, "true", "")
		step(s, "mkdir -p /out/d; echo one > /out/a; echo two > /out/d/b; chmod 640 /out/a", "a=one\n d/b=two")
		step(s, "cat /out/a", "")
		step(s, "echo more >> /out/a; rm -r /out/d", "a=one\nmore")
		step(s, oddFiles, "old= dark: did not come through whole link: is a link pipe: is not a regular file")
		step(s, "rm -f /out/*; echo z > /out/z", "z=z")
		step(s, "head -c 2000000 /dev/zero > /out/much; echo y > /out/y", "y=y\n much: is beyond 1048576 bytes in all")
		step(s, "for f in a b; do head -c 600000 /dev/zero > /out/$f; done",
			"a=600000 bytes b: is beyond 1048576 bytes in all")
		step(s, "rm /out/much /out/a", "b=600000 bytes") // and no earlier file comes again
		step(s, "rm /out/*; echo late > /out/late; sleep 100", "late=late")
		step(s, "rm /out/late; echo of a shell that ends > /out/end; kill -9 $$", "end=21 bytes")
		step(s, "rm /out/*; ln -sfn /etc /out", "etc: is a link")

		// Files that are late come with the next steps, and none comes twice.
		stopWhileCollected(t, step, s, rt)

		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "echo c > /out/of-a-command"}})
		if err != nil || cameBack(t, rt, res) != "of-a-command=c" {
			t.Errorf("a command: %v, %q", err, cameBack(t, rt, res))
		}
		forks, err := s.Fork(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer forks[0].Close()
		step(forks[0], "true", "")
		step(forks[0], "touch -d 2001-01-01 old; mv old /out/moved", "moved=")
		step(forks[0], "echo f > /out/of-a-fork", "of-a-fork=f")
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Leave(); err != nil {
			t.Fatal(err)
		}
		if s, err = rt.Revive(t.Context(), unitask.Caller{}, s.ID, nil); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		step(s, "touch -d 2001-01-01 old; mv old /out/moved", "moved=")
		step(s, "cat /out/of-a-fork || echo behind > /out/of-a-pause", "of-a-pause=behind")
	})
	t.Run("nanos", func(t *testing.T) {
		needNanos(t, image.HostArch())
		rt := sessionRuntime(t)
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}})
		for _, c := range []struct{ code, want string }{
			{"fs = require('fs'); 1", ""},
			{"fs.mkdirSync('/out/d'); fs.writeFileSync('/out/d/b', 'two'); fs.writeFileSync('/out/a', 'one')", "a=one d/b=two"},
			{"fs.readFileSync('/out/a').length", ""},
			{"fs.appendFileSync('/out/a', '!')", "a=one!"},
		} {
			res, err := s.Run(t.Context(), unitask.Step{Code: c.code})
			if err != nil || cameBack(t, rt, res) != c.want {
				t.Errorf("%s: %v, %q, want %q", c.code, err, cameBack(t, rt, res), c.want)
			}
		}
	})
}

// stopWhileCollected checks that no file is lost or comes twice when collecting takes too long.
func stopWhileCollected(
	t *testing.T, step func(s *unitask.Session, code string, want string), s *unitask.Session,
	rt *unitask.Runtime,
) {
	t.Helper()
	step(s, "rm /out/etc", "")
	unitask.SetGrace(rt, 500*time.Millisecond)
	var came []string
	for code, rounds := "for i in $(seq 100); do echo $i > /out/$i; done", 0; len(came) < 100 && rounds < 60; code,
		rounds = "true", rounds+1 {
		res, err := s.Run(t.Context(), unitask.Step{Code: code})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range res.Artifacts {
			came = append(came, a.Path)
		}
	}
	unitask.SetGrace(rt, unitask.CollectGrace)
	if slices.Sort(came); len(came) != 100 || len(slices.Compact(came)) != 100 {
		t.Errorf("of a hundred files came %d: %q", len(came), came)
	}
	step(s, "rm /out/*", "")
}
