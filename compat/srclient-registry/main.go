// What srclient does: client URL SUBJECT prints one JSON line.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log"
	"os"
	"time"

	"github.com/riferrei/srclient"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func code(err error) int {
	var refused srclient.Error
	if !errors.As(err, &refused) {
		log.Fatal("not refused: ", err)
	}
	return refused.Code
}

func main() {
	url, subject := os.Args[1], os.Args[2]
	client := srclient.NewSchemaRegistryClient(url)
	client.SetTimeout(60 * time.Second)
	first := `{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}`
	second := `{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0}]}`
	broken := `{"type":"record","name":"User","fields":[{"name":"other","type":"string"}]}`
	one := must(client.CreateSchema(subject, first, srclient.Avro))
	again := must(client.CreateSchema(subject, first, srclient.Avro))
	two := must(client.CreateSchema(subject, second, srclient.Avro))
	_, err := client.CreateSchema(subject, broken, srclient.Avro)
	refused := code(err)
	compatible := must(client.IsSchemaCompatible(subject, broken, "latest", srclient.Avro))
	found := must(client.LookupSchema(subject, first, srclient.Avro))
	must(client.ChangeSubjectCompatibilityLevel(subject, srclient.Full))
	level := must(client.GetCompatibilityLevel(subject, true))

	// A record in Confluent's framing, by the codec of a schema that is read back.
	reader := srclient.NewSchemaRegistryClient(url)
	fetched := must(reader.GetSchema(two.ID()))
	native, _, err := fetched.Codec().NativeFromTextual([]byte(`{"name":"Ada","age":36}`))
	must(native, err)
	payload := must(fetched.Codec().BinaryFromNative(nil, native))
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(fetched.ID()))
	framed = append(framed, payload...)
	back, _, err := must(reader.GetSchema(int(binary.BigEndian.Uint32(framed[1:5])))).Codec().NativeFromBinary(framed[5:])
	must(back, err)

	document := must(client.CreateSchema(subject+"-json", `{"type":"object","properties":{"n":{"type":"integer"}}}`, srclient.Json))
	must(client.CreateSchema(subject+"-person", `syntax = "proto3"; package p; message Person { string name = 1; }`, srclient.Protobuf))
	order := must(client.CreateSchema(subject+"-order", `syntax = "proto3"; package p; import "person.proto"; message Order { Person person = 1; }`,
		srclient.Protobuf, srclient.Reference{Name: "person.proto", Subject: subject + "-person", Version: 1}))
	reread := must(reader.GetSchemaByVersion(subject+"-order", 1))

	versions := must(client.GetSchemaVersions(subject))
	uses := must(client.GetSubjectVersionsById(two.ID()))
	_, err = client.GetLatestSchema(subject + "-none")
	missing := code(err)
	must(0, client.DeleteSubjectByVersion(subject, 1, false))
	must(0, client.DeleteSubject(subject, true))
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ids": []int{one.ID(), again.ID(), two.ID()}, "refused": refused, "compatible": compatible, "found": found.Version(),
		"level": level, "value": back, "json": document.JsonSchema() != nil, "order": []int{order.ID(), reread.ID()},
		"references": reread.References(), "type": reread.SchemaType(), "versions": versions, "uses": uses, "missing": missing,
	})
}
