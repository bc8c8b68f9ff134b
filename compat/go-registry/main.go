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
	document := sr.Schema{Schema: `{"type":"object","properties":{"n":{"type":"integer"}}}`, Type: sr.TypeJSON}
	inJSON := must(client.CreateSchema(ctx, subject+"-json", document))
	person := sr.Schema{Schema: `syntax = "proto3"; package p; message Person { string name = 1; }`, Type: sr.TypeProtobuf}
	must(client.CreateSchema(ctx, subject+"-person", person))
	order := sr.Schema{
		Schema:     `syntax = "proto3"; package p; import "person.proto"; message Order { Person person = 1; }`,
		Type:       sr.TypeProtobuf,
		References: []sr.SchemaReference{{Name: "person.proto", Subject: subject + "-person", Version: 1}},
	}
	inProtobuf := must(client.CreateSchema(ctx, subject+"-order", order))
	referrers := must(client.SchemaReferences(ctx, subject+"-person", 1))
	_, err = client.DeleteSubject(ctx, subject+"-person", sr.SoftDelete)
	var referenced *sr.ResponseError
	if !errors.As(err, &referenced) {
		log.Fatal("a referenced schema was deleted: ", err)
	}
	within := sr.InContext(ctx, "."+subject)
	contextual := must(client.CreateSchema(within, "s", first))
	subjects := must(client.Subjects(ctx))
	inContext := must(client.SubjectsByID(within, contextual.ID))
	serialized := must(client.SchemaTextByID(sr.WithParams(ctx, sr.Format("serialized")), inProtobuf.ID))

	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ids": []int{one.ID, again.ID, two.ID}, "refused": refused.ErrorCode, "compatible": checked.Is,
		"found": found.Version, "text": text.Schema, "level": level.Level.String(), "versions": versions,
		"deleted": deleted, "purged": purged, "name": back.Name,
		"types": []string{inJSON.Type.String(), inProtobuf.Type.String()}, "references": inProtobuf.References,
		"referrers": len(referrers), "referenced": referenced.ErrorCode, "context": contextual.ID, "in_context": inContext,
		"subjects": subjects, "serialized": serialized,
	})
}
