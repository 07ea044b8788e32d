// Command conformance serves the guest-facing side of the egress broker on loopback and runs the protocols' test suites
// on it: h2spec (HTTP/2) and tlsfuzzer (TLS). It prints how many of their cases pass and which fail; docs/security.md
// says why. It also tests Go's own server, to separate its findings from ours.
//
//	go run ./hack/conformance -h2spec PROGRAM
//	go run ./hack/conformance -tlsfuzzer FOLDER [-python PROGRAM] [-scripts PATTERN]
//
// The first comes from `go install github.com/summerwind/h2spec/cmd/h2spec@latest`; the second is a checkout of
// github.com/tlsfuzzer/tlsfuzzer, and a Python with the tlslite-ng of its requirements.txt.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/netstack/broker"
)

// host is a name that resolves to loopback without a setup: the suites look it up.
const host = "localhost"

// scriptTime is the time limit of one script of tlsfuzzer.
const scriptTime = time.Minute

//go:embed named.py
var named string // runs a script with a server name in each of its hellos

func main() {
	log.SetFlags(0)
	h2spec := flag.String("h2spec", "", "the program")
	fuzzer := flag.String("tlsfuzzer", "", "the checkout")
	python := flag.String("python", "python3", "a Python with tlslite-ng")
	pattern := flag.String("scripts", "test-tls13-*.py", "which of tlsfuzzer's scripts")
	plain := flag.Bool("plain", false,
		"try Go's own server, to tell its findings from ours; with -tlsfuzzer both are tried")
	serve := flag.Bool("serve", false, "only serve, and say where")
	flag.Parse()
	log.SetOutput(os.Stderr)
	port, reference, err := begin()
	if err != nil {
		log.Fatal(err)
	}
	if *plain {
		port = reference
	}
	switch {
	case *serve:
		fmt.Println(port)
		select {}
	case *h2spec != "":
		err = runH2spec(*h2spec, port)
	case *fuzzer != "":
		err = runFuzzer(*fuzzer, *python, *pattern, port, reference)
	default:
		err = fmt.Errorf("say which: -h2spec or -tlsfuzzer")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// begin serves a broker. The server behind it speaks both versions of HTTP and is the reference.
func begin() (port, reference string, err error) {
	cert, roots, err := certificate()
	if err != nil {
		return "", "", err
	}
	origin, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert},
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return "", "", err
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "an answer of some length")
		})}
	go func() { _ = server.Serve(origin) }()
	b, err := broker.New(broker.Config{Roots: roots, Rules: []broker.Rule{{Name: "all", Host: host}}})
	if err != nil {
		return "", "", err
	}
	guest, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	at := guest.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			conn, err := guest.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = b.Serve(context.Background(), conn, broker.Target{Host: host, Port: uint16(at), TLS: true},
					func(ctx context.Context) (net.Conn, error) {
						return (&net.Dialer{}).DialContext(ctx, "tcp", origin.Addr().String())
					}, func(broker.Exchange) {})
			}()
		}
	}()
	return strconv.Itoa(at), strconv.Itoa(origin.Addr().(*net.TCPAddr).Port), nil
}

// certificate returns the certificate of the server behind the broker.
func certificate() (cert tls.Certificate, roots *x509.CertPool, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return cert, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return cert, nil, err
	}
	roots = x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots, nil
}

// runH2spec prints h2spec's output: its cases, and their count.
func runH2spec(program, port string) error {
	cmd := exec.Command(program, "--tls", "--insecure", "--strict", "--host", host, "--port", port, "--timeout", "5")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if _, failed := err.(*exec.ExitError); failed { // its output already names them
		return nil
	}
	return err
}

// suite is the result of one script of tlsfuzzer: how many of its cases failed, by name, or why it had no result.
type suite struct {
	passed int
	failed map[string]int
	mute   string
}

var (
	passed  = regexp.MustCompile(`(?m)^PASS: +(\d+)$`)
	failing = regexp.MustCompile(`(?s)FAILED:\n(.*)\n`)
)

func try(dir, python, script, port string) suite {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", named, script, "-h", host, "-p", port)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PYTHONPATH="+dir)
	out, err := cmd.CombinedOutput()
	m := passed.FindSubmatch(out)
	if m == nil {
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		return suite{mute: fmt.Sprintf("%v: %.200s", err, lines[len(lines)-1])}
	}
	s := suite{failed: map[string]int{}}
	s.passed, _ = strconv.Atoi(string(m[1]))
	if m := failing.FindSubmatch(out); m != nil {
		for name := range strings.Lines(string(m[1])) {
			s.failed[strings.TrimSpace(name)]++
		}
	}
	return s
}

// runFuzzer runs tlsfuzzer's scripts one after the other, against the broker and the reference.
func runFuzzer(dir, python, pattern, port, reference string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	scripts, err := filepath.Glob(filepath.Join(dir, "scripts", pattern))
	if err != nil || len(scripts) == 0 {
		return fmt.Errorf("no %s in %s/scripts: %v", pattern, dir, err)
	}
	var ran, mute, pass, fail, ours int
	for _, script := range scripts {
		name := filepath.Base(script)
		got := try(dir, python, script, port)
		if got.mute != "" {
			mute++
			fmt.Printf("%-50s did not say: %s\n", name, got.mute)
			continue
		}
		plain := try(dir, python, script, reference)
		failed := 0
		for _, n := range got.failed {
			failed += n
		}
		ran, pass, fail = ran+1, pass+got.passed, fail+failed
		fmt.Printf("%-50s %d passed, %d failed\n", name, got.passed, failed)
		for _, name := range slices.Sorted(maps.Keys(got.failed)) {
			if more := got.failed[name] - plain.failed[name]; more > 0 {
				ours += more
				fmt.Printf("    not so by Go's own server: %s\n", name)
			}
		}
	}
	fmt.Printf("%d scripts: %d passed, %d failed, %d of these not by Go's own server; %d scripts did not say\n", ran, pass,
		fail, ours, mute)
	return nil
}
