package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/unitask/unitask/internal/attack"
)

const awsKey = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

// awsServer answers ok if AWS' own signer makes the same signature for a request with the real key.
func awsServer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	if said := r.Header.Get("X-Amz-Content-Sha256"); said != "" {
		if said != hash && said != "UNSIGNED-PAYLOAD" {
			http.Error(w, "another body", http.StatusForbidden)
			return
		}
		hash = said
	}
	text := r.Header.Get("Authorization")
	_, rest, presigned := strings.Cut(r.URL.RawQuery, "X-Amz-SignedHeaders=")
	_, fields, _ := strings.Cut(text, "SignedHeaders=")
	fields, _, _ = strings.Cut(fields, ",")
	if presigned {
		fields, _, _ = strings.Cut(rest, "&")
		fields, _ = url.QueryUnescape(fields)
		hash = "UNSIGNED-PAYLOAD"
	}
	again := httptest.NewRequest(r.Method, "https://"+r.Host+r.RequestURI, nil)
	for name := range strings.SplitSeq(fields, ";") {
		if v := r.Header.Values(name); len(v) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	again.ContentLength = r.ContentLength
	scope := strings.Split(text, "/")
	date := r.Header.Get("X-Amz-Date")
	if presigned {
		scope, date = strings.Split(r.URL.Query().Get("X-Amz-Credential"), "/"), r.URL.Query().Get("X-Amz-Date")
		q := again.URL.Query()
		for _, name := range []string{"Signature", "Algorithm", "Credential", "Date", "SignedHeaders"} {
			q.Del("X-Amz-" + name)
		}
		again.URL.RawQuery = q.Encode()
	}
	when, err := time.Parse("20060102T150405Z", date)
	if err != nil || len(scope) < 4 {
		http.Error(w, "no signature", http.StatusForbidden)
		return
	}
	s3 := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = scope[3] == "s3" }
	creds := aws.Credentials{AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: awsKey,
		SessionToken: r.Header.Get("X-Amz-Security-Token")}
	want := ""
	if presigned {
		signed, _, err := v4.NewSigner(s3).PresignHTTP(r.Context(), creds, again, hash, scope[3], scope[2], when)
		if err == nil {
			u, _ := url.Parse(signed)
			want, text = u.Query().Get("X-Amz-Signature"), r.URL.Query().Get("X-Amz-Signature")
		}
	} else if err := v4.NewSigner(s3).SignHTTP(r.Context(), creds, again, hash, scope[3], scope[2], when); err == nil {
		want = again.Header.Get("Authorization")
	}
	if want == "" || text != want {
		http.Error(w, "SignatureDoesNotMatch\n"+text+"\n"+want, http.StatusForbidden)
		return
	}
	_, _ = io.WriteString(w, "ok "+string(body))
}

// TestSigV4 checks that requests that AWS' own client signs with the placeholder arrive signed with the real key.
func TestSigV4(t *testing.T) {
	o := newOrigin(t, originConfig{}, awsServer)
	for _, h2 := range []bool{false, true} {
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "AWS_SECRET_ACCESS_KEY", Value: awsKey, Hosts: []Host{host},
			In: []Place{InSigV4}}}})
		client, fake := r.client(h2), r.Placeholder("AWS_SECRET_ACCESS_KEY")
		if fake == awsKey || len(fake) != len(awsKey) {
			t.Fatalf("placeholder %q", fake)
		}
		for _, row := range []struct {
			name, method, target, service, body, token string
			header                                     map[string]string
			presigned                                  bool
			hash                                       string // from the header; "" if missing
		}{
			{name: "S3, a name with blanks and signs", method: "GET",
				target: "/bucket/a%20b%2Bc/%C3%A9.txt?list-type=2&prefix=x%2Fy&delimiter", service: "s3", hash: "of"},
			{name: "S3, a body", method: "PUT", target: "/bucket/key", service: "s3", body: "content", hash: "of"},
			{name: "S3, a body that is not signed", method: "PUT", target: "/bucket/key", service: "s3", body: "content",
				hash: "UNSIGNED-PAYLOAD"},
			{name: "S3, a range", method: "GET", target: "/bucket/key", service: "s3", hash: "of",
				header: map[string]string{"Range": "bytes=0-3"}},
			{name: "DynamoDB, whose hash is in no field", method: "POST", target: "/", service: "dynamodb",
				body: `{"TableName":"x"}`, header: map[string]string{"X-Amz-Target": "DynamoDB_20120810.GetItem",
					"Content-Type": "application/x-amz-json-1.0"}},
			{name: "a path that is encoded twice", method: "GET", target: "/v1/a%20b/c%2Fd?z=1&a=2&a=1&empty=",
				service: "execute-api"},
			{name: "a session's token, and blanks in a field", method: "GET", target: "/", service: "sts",
				token: "token/with+signs=", header: map[string]string{"X-Amz-Meta-A": "  a   b "}},
			{name: "in the query", method: "GET", target: "/bucket/a%20b?X-Amz-Expires=60", service: "s3", presigned: true},
		} {
			req, err := http.NewRequest(row.method, "https://"+host+row.target, strings.NewReader(row.body))
			if err != nil {
				t.Fatal(err)
			}
			if row.body == "" {
				req.Body, req.ContentLength = http.NoBody, 0
			}
			for name, value := range row.header {
				req.Header.Set(name, value)
			}
			sum := sha256.Sum256([]byte(row.body))
			hash := hex.EncodeToString(sum[:])
			if row.hash == "of" {
				req.Header.Set("X-Amz-Content-Sha256", hash)
			} else if row.hash != "" {
				hash = row.hash
				req.Header.Set("X-Amz-Content-Sha256", hash)
			}
			creds := aws.Credentials{AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: fake, SessionToken: row.token}
			s3 := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = row.service == "s3" }
			if row.presigned {
				signed, _, err := v4.NewSigner(s3).PresignHTTP(t.Context(), creds, req, "UNSIGNED-PAYLOAD", row.service,
					"eu-central-1", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				if req, err = http.NewRequest(row.method, signed, nil); err != nil {
					t.Fatal(err)
				}
			} else if err := v4.NewSigner(s3).SignHTTP(t.Context(), creds, req, hash, row.service, "eu-central-1",
				time.Now()); err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s: %v", row.name, err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 200 || string(text) != "ok "+row.body {
				t.Errorf("%s, h2 %t: %d %s", row.name, h2, res.StatusCode, text)
			}
		}
	}
}

// TestAttackSigV4 checks that a request that is signed in another way, or with another key, gets no signature of ours.
func TestAttackSigV4(t *testing.T) {
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: awsKey, Hosts: []Host{host}, In: []Place{InSigV4}}}})
	client := r.client(false)
	const good = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-central-1/s3/aws4_request, " +
		"SignedHeaders=host;x-amz-date, Signature="
	signature := strings.Repeat("0", 64)
	for _, row := range []struct {
		name, authorization string
		header              map[string]string
		body                io.Reader
		want                string
	}{
		{"another key's signature", good + signature, nil, nil, "as it is"},
		{"no signature", "", nil, nil, "as it is"},
		{"another scheme", "Bearer x", nil, nil, "as it is"},
		{"the placeholder itself", "Bearer PLACEHOLDER", nil, nil, "403 unitask: the placeholder of KEY is in the header"},
		{"a short signature", good + "00", nil, nil, "403 unitask: the request's AWS signature is not of 64"},
		{"no scope", strings.Replace(good, "/s3/", "/", 1) + signature, nil, nil,
			"403 unitask: the request's AWS signature has a scope"},
		{"no date", good + signature, map[string]string{"X-Amz-Date": ""}, nil,
			"403 unitask: the request's AWS signature has no X-Amz-Date"},
		{"too many fields", strings.Replace(good, "host;", strings.Repeat("a;", 200), 1) + signature, nil, nil,
			"403 unitask: the request's AWS signature is about no fields"},
		{"pieces that are signed", good + signature,
			map[string]string{"X-Amz-Content-Sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, strings.NewReader("x"),
			"403 unitask: the request's AWS signature is for each piece"},
		{"a body that is too long to be read first", good + signature, map[string]string{"X-Amz-Content-Sha256": ""},
			bytes.NewReader(make([]byte, maxSigned+1)), "403 unitask: the request's AWS signature is of a body of more"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", row.body)
		if err != nil {
			t.Fatal(err)
		}
		sent := strings.Replace(row.authorization, "PLACEHOLDER", r.Placeholder("KEY"), 1)
		req.Header.Set("X-Amz-Date", "20260101T000000Z")
		req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		req.Header.Set("Authorization", sent)
		for name, value := range row.header {
			if req.Header.Set(name, value); value == "" {
				req.Header.Del(name)
			}
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		seen := "as it is"
		if string(text) != sent || res.StatusCode != 200 {
			seen = strings.TrimSpace(res.Status[:4] + string(text))
		}
		if strings.HasPrefix(seen, row.want) {
			seen = row.want
		}
		attack.Check(t, row.name, row.want, seen)
	}
}

// TestSigV4Botocore checks signatures that botocore 1.44.5, the client of AWS' Python SDK and command line, has made
// with a key.
func TestSigV4Botocore(t *testing.T) {
	const key, empty = "placeholderplaceholderplaceholder0123456",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, row := range []struct {
		method, target, service, fields, signature string
		header                                     map[string]string
		body                                       string
		once                                       bool // the path is encoded once
	}{
		{"GET", "/bucket/a%20b%2Bc/%C3%A9.txt?list-type=2&prefix=x%2Fy&delimiter=", "s3",
			"host;x-amz-content-sha256;x-amz-date", "5ab6c17c0de2afb5a1bd3a1254e3e9ae676ee75044400c093ea4de33b1b1b934",
			map[string]string{"X-Amz-Content-Sha256": empty}, empty, true},
		{"PUT", "/bucket/key", "s3", "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-meta-a",
			"c45ce3aa8a4e9bcfde5c4ead288208af9e676c00814c43223ac5a0ced733dfbd",
			map[string]string{"Content-Type": "text/plain", "X-Amz-Meta-A": "  a   b ",
				"X-Amz-Content-Sha256": "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"},
			"ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73", true},
		{"POST", "/", "dynamodb", "content-type;host;x-amz-date;x-amz-target",
			"1916567735c19c7644363e2c1ecc9a34a7da4c180ec9b3723ce68f8d954f61b3",
			map[string]string{"X-Amz-Target": "DynamoDB_20120810.GetItem", "Content-Type": "application/x-amz-json-1.0"},
			`{"TableName":"x"}`, false},
		{"GET", "/v1/a%20b/c%2Fd?z=1&a=2&a=1&empty=", "execute-api", "host;x-amz-date",
			"f77de83ecf1c71beb1cdd83786a33213a7b1faa484896b2b2c37cd28c06b2990", nil, empty, false},
		{
			method: "GET",
			target: "/bucket/a%20b?X-Amz-Algorithm=AWS4-HMAC-SHA256&" +
				"X-Amz-Credential=AKIAEXAMPLE%2F20260102%2Feu-central-1%2Fs3%2Faws4_request&" +
				"X-Amz-Date=20260102T030405Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host" +
				"&X-Amz-Signature=be9981df4f70036160f5908917ff854b904479192d3d9eabb8cfe33f15c3a300",
			signature: "be9981df4f70036160f5908917ff854b904479192d3d9eabb8cfe33f15c3a300",
			body:      "UNSIGNED-PAYLOAD",
			once:      true,
		},
	} {
		r := httptest.NewRequest(row.method, "https://api.example.com"+row.target, nil)
		for name, value := range row.header {
			r.Header.Set(name, value)
		}
		if row.service != "" {
			r.Header.Set("X-Amz-Date", "20260102T030405Z")
			r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20260102/eu-central-1/"+row.service+
				"/aws4_request, SignedHeaders="+row.fields+", Signature="+row.signature)
		}
		if strings.HasPrefix(row.body, "{") {
			sum := sha256.Sum256([]byte(row.body))
			row.body = hex.EncodeToString(sum[:])
		}
		s, err := signatureOf(r.Header, r.URL.RawQuery)
		if err != nil || s == nil {
			t.Fatalf("%s: %v", row.target, err)
		}
		if got := s.of(key, r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, r.Header, 0, row.body,
			!row.once); got != row.signature || s.value != row.signature {
			t.Errorf("%s: %s, botocore has %s", row.target, got, row.signature)
		}
	}
}

func FuzzSignature(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature="+strings.Repeat("0", 64),
		"a=b&X-Amz-Date=x&%zz", "/a%2Fb")
	f.Add("",
		"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/d/aws4_request&"+
			"X-Amz-SignedHeaders=host;;&X-Amz-Signature=00", "")
	f.Fuzz(func(t *testing.T, authorization, query, path string) {
		h := http.Header{"Authorization": {authorization}, "X-Amz-Date": {"x"}}
		s, err := signatureOf(h, query)
		if s == nil || err != nil {
			return
		}
		if got := s.of("key", "GET", "host", path, query, h, 0, "hash", true); len(got) != 64 {
			t.Errorf("%q", got)
		}
	})
}
