// What franz-go's client of a schema registry does: registry URL SUBJECT prints one JSON line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

type user struct {
	Name string `json:"name"`
}

func main() {
	ctx, subject := context.Background(), os.Args[2]
	client := must(sr.NewClient(sr.URLs(os.Args[1])))
	first := sr.Schema{Schema: `{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}`}
	second := sr.Schema{Schema: `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0}]}`}
	broken := sr.Schema{Schema: `{"type":"record","name":"User","fields":[{"name":"other","type":"string"}]}`}
	one := must(client.CreateSchema(ctx, subject, first))
	again := must(client.CreateSchema(ctx, subject, first))
	two := must(client.CreateSchema(ctx, subject, second))
	_, err := client.CreateSchema(ctx, subject, broken)
	var refused *sr.ResponseError
	if !errors.As(err, &refused) {
		log.Fatal("an incompatible schema was not refused: ", err)
	}
	checked := must(client.CheckCompatibility(ctx, subject, -1, broken))
	found := must(client.LookupSchema(ctx, subject, first))
	text := must(client.SchemaByID(ctx, two.ID))
	client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, subject)
	level := client.Compatibility(ctx, subject)[0]
	versions := must(client.SubjectVersions(ctx, subject))
	deleted := must(client.DeleteSubject(ctx, subject, sr.SoftDelete))
	purged := must(client.DeleteSubject(ctx, subject, sr.HardDelete))

	serde := sr.NewSerde()
	serde.Register(one.ID, user{}, sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal))
	framed := must(serde.Encode(user{"Ada"}))
	var back user
	if err := serde.Decode(framed, &back); err != nil {
		log.Fatal(err)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ids": []int{one.ID, again.ID, two.ID}, "refused": refused.ErrorCode, "compatible": checked.Is,
		"found": found.Version, "text": text.Schema, "level": level.Level.String(), "versions": versions,
		"deleted": deleted, "purged": purged, "name": back.Name,
	})
}
