// Logins of franz-go and sarama: one JSON order on standard input, one JSON answer on standard output.
//
// The client logs in, creates a topic, writes records to it and reads them back. Without a mechanism it has a
// certificate; without an authority it does not encrypt.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"time"
)

const patience = 60 * time.Second

type order struct {
	Client    string `json:"client"`
	Bootstrap string `json:"bootstrap"`
	Topic     string `json:"topic"`
	Count     int    `json:"count"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
	Token     string `json:"token"`
	Authority string `json:"authority"`
	Key       string `json:"key"`
	Chain     string `json:"chain"`
	// User and password are the id and the HMAC of a delegation token.
	IsDelegationToken bool `json:"delegation_token"`
}

func main() {
	var o order
	answer := map[string]any{}
	err := json.NewDecoder(os.Stdin).Decode(&o)
	if err == nil {
		read := 0
		switch o.Client {
		case "franz-go":
			read, err = useFranz(&o)
		case "sarama":
			read, err = useSarama(&o)
		default:
			err = errors.New("no such client: " + o.Client)
		}
		answer["read"] = read
	}
	if err != nil {
		answer["error"] = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(answer)
}

// tlsConfig is nil for a listener that does not encrypt.
func tlsConfig(o *order) (*tls.Config, error) {
	if o.Authority == "" {
		return nil, nil
	}
	authority, err := os.ReadFile(o.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if o.Key != "" {
		pair, err := tls.LoadX509KeyPair(o.Chain, o.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
