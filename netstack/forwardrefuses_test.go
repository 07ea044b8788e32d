package netstack

import (
	"crypto/tls"
	"strings"
)

type forwardRefusesRow struct {
	port   uint16
	say    string
	reason string
}

// forwardRefusesRows are the cases of TestForwardRefuses.
func forwardRefusesRows(hello func(sni string, more func(*tls.Config)) string) map[string]forwardRefusesRow {
	const (
		good    = "Host: good.example\r\n"
		get     = "GET / HTTP/1.1\r\n"
		post    = "POST / HTTP/1.1\r\n" + good
		evil    = "Host: evil.example\r\n"
		version = " HTTP/1.1\r\n" + good + "\r\n"
		chunked = "Transfer-Encoding: chunked\r\n"
	)
	hello32KiB := "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("\x00", 16380) +
		strings.Repeat("\x16\x03\x01\x40\x00"+strings.Repeat("\x00", 16384), 3)
	return map[string]forwardRefusesRow{
		"another host":                 {80, get + evil + "\r\n", "HTTP for evil.example"},
		"another host, second request": {80, get + good + "\r\n" + get + evil + "\r\n", "HTTP for evil.example"},
		"another host behind a body": {80, post + "Content-Length: 2\r\n\r\nok" + get + evil + "\r\n",
			"HTTP for evil.example"},
		"another port in Host":  {80, get + "Host: good.example:81\r\n\r\n", "HTTP for good.example:81"},
		"an address in Host":    {80, get + "Host: 93.184.216.34\r\n\r\n", "HTTP for 93.184.216.34"},
		"no Host":               {80, get + "X: 1\r\n\r\n", "0 Host fields"},
		"HTTP/1.0 without Host": {80, "GET / HTTP/1.0\r\n\r\n", "0 Host fields"},
		"two Hosts":             {80, get + good + evil + "\r\n", "2 Host fields"},
		"two Hosts in one": {80, get + "Host: good.example, evil.example\r\n\r\n",
			"HTTP for good.example, evil.example"},
		"an empty Host":                  {80, get + "Host:\r\n\r\n", "HTTP for "},
		"Host with a NUL":                {80, get + "Host: good.example\x00.evil.example\r\n\r\n", "control character"},
		"Host with an at sign":           {80, get + "Host: good.example@evil.example\r\n\r\n", "HTTP for"},
		"Host with a space before":       {80, get + "Host : good.example\r\n\r\n", "malformed header line"},
		"a folded Host":                  {80, get + good + " evil.example\r\n\r\n", "malformed header line"},
		"a bare LF":                      {80, get + "Host: good.example\nX: 1\r\n\r\n", "control character"},
		"a bare CR":                      {80, get + "Host: good.example\r" + evil + "\r\n", "control character"},
		"the absolute form elsewhere":    {80, "GET http://evil.example/" + version, "another host than Host"},
		"the absolute form with a user":  {80, "GET http://good.example@evil.example/" + version, "another host than Host"},
		"the absolute form with a query": {80, "GET http://evil.example?good.example" + version, "another host than Host"},
		"the authority form":             {80, "GET evil.example:80" + version, "another host than Host"},
		"another scheme":                 {80, "GET ftp://good.example/" + version, "another host than Host"},
		"CONNECT":                        {80, "CONNECT good.example:80 HTTP/1.1\r\n" + good + "\r\n", "CONNECT"},
		"length and chunks": {80, post + "Content-Length: 4\r\n" + chunked + "\r\n0\r\n\r\n",
			"both Content-Length"},
		"two lengths":               {80, post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n", "Content-Length"},
		"a list of lengths":         {80, post + "Content-Length: 4, 4\r\n\r\n", "Content-Length"},
		"a signed length":           {80, post + "Content-Length: +4\r\n\r\n", "Content-Length"},
		"a hexadecimal length":      {80, post + "Content-Length: 0x4\r\n\r\n", "Content-Length"},
		"an obfuscated encoding":    {80, post + "Transfer-Encoding: xchunked\r\n\r\n", "Transfer-Encoding"},
		"two encodings":             {80, post + chunked + "Transfer-Encoding: identity\r\n\r\n", "Transfer-Encoding"},
		"an encoding in a list":     {80, post + "Transfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"},
		"chunks in HTTP/1.0":        {80, "POST / HTTP/1.0\r\n" + good + chunked + "\r\n0\r\n\r\n", "HTTP/1.0"},
		"a chunk with a sign":       {80, post + chunked + "\r\n+1\r\na\r\n0\r\n\r\n", "a malformed chunk"},
		"a chunk that lies":         {80, post + chunked + "\r\n1\r\nabc\r\n0\r\n\r\n", "longer than its size"},
		"a chunk's line without CR": {80, post + chunked + "\r\n1\nab\r\n", "a malformed chunk"},
		"a chunk of all memory":     {80, post + chunked + "\r\nfffffffffffffffff\r\n", "a malformed chunk"},
		"an upgrade to HTTP/2": {80, get + good + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
			"HTTP/2 in the clear"},
		"HTTP/2 by prior knowledge": {80, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"HTTP/0.9":                  {80, "GET /\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"a late upgrade": {80, get + good + "\r\n" + get + good +
			"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", "upgrade after other requests"},
		"a head without an end": {80, get + good + "X: " + strings.Repeat("x", maxHead) + "\r\n\r\n",
			"an HTTP head of more than"},
		"ten thousand fields": {80, get + good + strings.Repeat("a:b\r\n", 10_000) + "\r\n",
			"an HTTP head of more than"},
		"SSH":                           {80, "SSH-2.0-OpenSSH_9.0\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"SMTP":                          {443, "EHLO good.example\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"noise":                         {443, string([]byte{0, 1, 2, 3, '\n'}), "this is not HTTP or TLS: --allow-tcp"},
		"plain HTTP for another on 443": {443, get + evil + "\r\n", "HTTP for evil.example"},
		"TLS for another":               {443, hello("evil.example", nil), "TLS for evil.example"},
		"TLS for another on 80":         {80, hello("evil.example", nil), "TLS for evil.example"},
		"TLS without a name":            {443, hello("", nil), "without a server name"},
		"TLS for an address":            {443, hello("93.184.216.34", nil), "without a server name"},
		"TLS for a name below":          {443, hello("a.good.example", nil), "TLS for a.good.example"},
		"TLS for a name with a tail":    {443, hello("good.example.evil.example", nil), "TLS for good.example.evil.example"},
		"encrypted client hello":        {443, hello("good.example", withECH), "encrypted client hello"},
		"a TLS record that lies":        {443, "\x16\x03\x01\xff\xff" + strings.Repeat("x", 100_000), "TLS hello"},
		"a TLS record of no handshake":  {443, "\x16\x03\x01\x00\x05hello", "no TLS hello"},
		"a hello over 32 KiB":           {443, hello32KiB, "TLS hello"},
	}
}
