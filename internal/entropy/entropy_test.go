package entropy

import (
	"strings"
	"testing"
)

func TestBits(t *testing.T) {
	for _, c := range []struct {
		secret    string
		guessable bool
	}{
		{"", true},
		{"48151623", true},         // a PIN
		{"4815162342108999", true}, // a card's number
		{"hunter2", true},          //
		{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true}, //
		{"postgres://user:hunter2@db.example.com/production", true},
		{"postgres://user@db.example.com/production", true},
		{`{"user":"production","pin":48151623}`, true},
		{"postgres://user:hunt%er2@db.example.com/production?sslmode=require", true}, // not escaped
		{"postgres://user:hu#t/er2@db.example.com/production?sslmode=require", true},
		{"mongodb://user:hunter2@one.example.com:27017,two.example.com:27017/production", true},
		{`{"dsn":"postgres://user:hunter2@db.example.com/production"}`, true},
		{"Basic cHJvZHVjdGlvbi1hZG1pbmlzdHJhdG9yOmh1bnRlcjI=", true}, // production-administrator:hunter2
		{"cHJvZHVjdGlvbi1hZG1pbmlzdHJhdG9yOmh1bnRlcjI=", true},
		{"eyJ1c2VyIjoicHJvZHVjdGlvbiIsInBpbiI6NDgxNTE2MjN9", true}, // {"user":"production","pin":48151623}
		{"Bearer hunter2", true},
		{"user=production; pin=48151623; theme=dark", true},
		{"Server=tcp:db;Database=production;User=admin;Password=hunter2", true},
		{"PRODUCTION_DATABASE_PASSWORD=hunter2", true},
		{"production-administrator:hunter2", true},
		{"production-database-password: hunter2", true},
		{"production-admin:hunter2@tcp(db.example.com:3306)/production?parseTime=true", true},
		{"production-admin:hunter2@db.example.com:5432/production", true},
		{"70726f64756374696f6e2d61646d696e6973747261746f723a68756e74657232", true}, // production-administrator:hunter2
		{"https://reports.example.com/production/export?token=hunter2", true},
		{`{"user":"production-administrators","url":"https://db.example.com/production-administrators","password":"hunter2"}`,
			true},
		{`{"login":{"account":"production-administrators","PIN":"48151623"}}`, true},
		{"account=production-administrators;password=hunter2;theme=dark", true},
		{"123456789:AAFdZk3vQ8sXw1Lr7Tn5pdFZKVeTuE8sk7o", false},
		{"API_KEY=Zk3vQ8sXw1Lr7Tn5", false},
		{"admin:Zk3vQ8sXw1Lr7Tn5", false},
		{"Zk3vQ8sXw1Lr7Tn5pdFZKV:v1", false},
		{"Zk3vQ8sXw1Lr7Tn5pdFZ=", false},
		{"Zk3vQ8sXw1Lr7Tn5pdFZKVeTuE8sk7oOcHrzqqgy==", false},
		{"https://reports.example.com/export?key=Zk3vQ8sXw1Lr7Tn5", false},
		{`{"type":"service_account","private_key":"Zk3vQ8sXw1Lr7Tn5","token_uri":"https://example.com/token"}`, false},
		{"admin:Zk3vQ8sXw1Lr7Tn5@tcp(db.example.com:3306)/production", false},
		{`{"token_type":"bearer","data":{"value":"Zk3vQ8sXw1Lr7Tn5"}}`, false},
		{"9f86d081884c7d659a2feaa0c55ad015", false}, // hexadecimal
		{"xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy", false},
		{"ghp_0123456789abcdefghijklmnopqrstuvwx", false},
		{"Zk3vQ8sXw1Lr7Tn5", false},
		{"Bearer Zk3vQ8sXw1Lr7Tn5", false},
		{"Basic YWRtaW46WmszdlE4c1h3MUxyN1RuNQ==", false}, // admin:Zk3vQ8sXw1Lr7Tn5
		{"session=Zk3vQ8sXw1Lr7Tn5; theme=dark", false},
		{"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", false},
		{"550e8400-e29b-41d4-a716-446655440000", false},
		{"https://hooks.example.com/services/T00000000/B00000000/Zk3vQ8sXw1Lr7Tn5", false},
		{"xK#9$vLq@2!mPz&w=;", false},
		{"postgres://user:Zk3vQ8sXw1Lr7Tn5@db.example.com/production", false},
		{`{"user":"x","key":"Zk3vQ8sXw1Lr7Tn5"}`, false},
		{"\xff\xfe binary that is no text, \x00\x01", false},
		{strings.Repeat("Zk3vQ8sXw1Lr7Tn5", 512), false},
	} {
		if got := Guessable(c.secret); got != c.guessable {
			t.Errorf("Guessable(%.60q) = %t of %.0f bits, want %t", c.secret, got, Bits(c.secret), c.guessable)
		}
	}
}
