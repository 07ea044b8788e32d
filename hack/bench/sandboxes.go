package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/e2b"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// sandboxTemplate is the template of the measured sandboxes, an image that every home has.
const sandboxTemplate = "shell"

// sandboxes measures sandboxes of E2B's API: the time to make one, and of its first command.
func (s *suite) sandboxes(kernel image.Kernel, only string, rounds int) (bool, error) {
	if kernel != image.Linux {
		return true, nil
	}
	class := unitask.MachineClass{Image: sandboxTemplate, Kernel: kernel}
	if _, err := s.rt.MakeTemplate(s.ctx, class); err != nil {
		return false, err
	}
	server, err := s.serveE2B(s.rt)
	if err != nil {
		return false, err
	}
	defer server.close()
	ok, err := s.rows(kernel, []row{{name: "E2B: create, first command", target: 1.15, subject: server.one,
		reference: s.sessionAndCommand, against: "a session of the Go package and a command"}}, only, rounds)
	if err != nil {
		return false, err
	}
	fmt.Println("\n| E2B's API | p50 | p95 | p99 |\n| --- | --- | --- | --- |")
	return ok, server.table(rounds)
}

// sessionAndCommand starts a session, runs a command, and ends the session.
func (s *suite) sessionAndCommand() error {
	of, err := s.rt.NewSession(s.ctx, unitask.SessionRequest{Root: true,
		Request: unitask.Request{Image: sandboxTemplate, AllowNetAny: true}})
	if err != nil {
		return err
	}
	res, err := of.Exec(s.ctx, unitask.Command{Args: []string{"/bin/bash", "-l", "-c", "echo hello"}, Dir: "/home/user"})
	if err == nil {
		err = saidHello(string(res.Stdout))
	}
	return errors.Join(err, of.Close())
}

func saidHello(out string) error {
	if !strings.Contains(out, "hello") {
		return fmt.Errorf("the command printed %q", out)
	}
	return nil
}

// e2bServer serves E2B's API on loopback.
type e2bServer struct {
	*httptest.Server
	close func()
}

func (s *suite) serveE2B(rt *unitask.Runtime) (*e2bServer, error) {
	shared, err := mcp.New(rt, mcp.Options{Dir: s.dir, Ceiling: &policy.Ceiling{}})
	if err != nil {
		return nil, err
	}
	hs := httptest.NewUnstartedServer(nil)
	hs.Config.Handler, err = shared.Handler(mcp.HTTPOptions{Addr: hs.Listener.Addr().String(), APIs: []mcp.API{e2b.New(
		e2b.Options{Runtime: rt, Caller: shared.Caller, Admit: shared.Admit, Hide: shared.Hide,
			Log: slog.New(slog.DiscardHandler)})}})
	if err != nil {
		shared.Close()
		return nil, err
	}
	hs.Start()
	return &e2bServer{hs, func() { hs.CloseClientConnections(); hs.Close(); shared.Close() }}, nil
}

// create makes a sandbox, and returns its id.
func (e *e2bServer) create() (string, error) {
	res, err := http.Post(e.URL+"/sandboxes", "application/json",
		strings.NewReader(`{"templateID": "`+sandboxTemplate+`", "timeout": 60}`))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var made struct {
		ID string `json:"sandboxID"`
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, json.Unmarshal(text, &made)); err != nil || res.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("%s: %s: %w", res.Status, text, err)
	}
	return made.ID, nil
}

// command runs a command in a sandbox, by the Connect protocol.
func (e *e2bServer) command(id string) error {
	const in = `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hello"]},"stdin":false}`
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(in))), in...)
	req, err := http.NewRequest(http.MethodPost, e.URL+"/process.Process/Start", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("E2b-Sandbox-Id", id)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	return saidHello(strings.ReplaceAll(string(text), "aGVsbG8K", "hello")) // in base64
}

// end kills a sandbox.
func (e *e2bServer) end(id string) error {
	req, err := http.NewRequest(http.MethodDelete, e.URL+"/sandboxes/"+id, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		err = res.Body.Close()
	}
	return err
}

// one makes a sandbox, runs a command in it, and kills it.
func (e *e2bServer) one() error {
	id, err := e.create()
	if err == nil {
		err = errors.Join(e.command(id), e.end(id))
	}
	return err
}

// table prints the times of making a sandbox, and of its first command.
func (e *e2bServer) table(rounds int) error {
	took := map[string][]time.Duration{}
	for i := range rounds + 1 {
		var id string
		create, err := timed(func() (err error) { id, err = e.create(); return err })
		if err != nil {
			return err
		}
		command, err := timed(func() error { return e.command(id) })
		if err = errors.Join(err, e.end(id)); err != nil {
			return err
		}
		if i > 0 {
			took["create"] = append(took["create"], create)
			took["first command"] = append(took["first command"], command)
			took["both"] = append(took["both"], create+command)
		}
	}
	for _, step := range []string{"create", "first command", "both"} {
		fmt.Printf("| %s | %s | %s | %s |\n", step, ms(quantile(took[step], 50)), ms(quantile(took[step], 95)),
			ms(quantile(took[step], 99)))
	}
	return nil
}
