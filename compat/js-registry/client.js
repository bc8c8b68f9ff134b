// What Confluent's client for JavaScript does: node client.js URL TOPIC prints one JSON line.
const { create, createFileRegistry } = require('@bufbuild/protobuf');
const { FileDescriptorSetSchema } = require('@bufbuild/protobuf/wkt');
const {
  AvroDeserializer,
  AvroSerializer,
  JsonDeserializer,
  JsonSerializer,
  ProtobufDeserializer,
  ProtobufSerializer,
  SchemaRegistryClient,
  SerdeType,
} = require('@confluentinc/schemaregistry');

// A message type of Protobuf as protoc would describe it.
function describePerson() {
  const field = { name: 'name', number: 1, type: 9, label: 1, jsonName: 'name' };
  const file = { name: 'person.proto', package: 'p', syntax: 'proto3', messageType: [{ name: 'Person', field: [field] }] };
  return createFileRegistry(create(FileDescriptorSetSchema, { file: [file] })).getMessage('p.Person');
}

async function useOtherFormats(client, topic) {
  const document = {
    schemaType: 'JSON',
    schema: JSON.stringify({ type: 'object', properties: { name: { type: 'string' } }, required: ['name'] }),
  };
  await client.register(`${topic}-json-value`, document);
  const jsonSerializer = new JsonSerializer(client, SerdeType.VALUE, { useLatestVersion: true, validate: true });
  const json = await new JsonDeserializer(client, SerdeType.VALUE, { validate: true }).deserialize(
    `${topic}-json`, await jsonSerializer.serialize(`${topic}-json`, { name: 'Ada' }));
  const refused = await jsonSerializer.serialize(`${topic}-json`, { other: 1 }).then(() => 'taken', () => 'refused');
  const type = describePerson();
  const protobufSerializer = new ProtobufSerializer(client, SerdeType.VALUE, { autoRegisterSchemas: true });
  const protobufDeserializer = new ProtobufDeserializer(client, SerdeType.VALUE, {});
  protobufSerializer.registry.add(type);
  const data = await protobufSerializer.serialize(`${topic}-protobuf`, create(type, { name: 'Ada' }));
  const person = await protobufDeserializer.deserialize(`${topic}-protobuf`, data);
  return { json, refused, person: person.name };
}

async function useReferencesAndContexts(client, topic) {
  const inner = { schemaType: 'AVRO', schema: JSON.stringify({ type: 'record', name: 'Inner', fields: [{ name: 'x', type: 'int' }] }) };
  const references = [{ name: 'Inner', subject: `${topic}-inner`, version: 1 }];
  const outer = { schemaType: 'AVRO', schema: JSON.stringify({ type: 'record', name: 'Outer', fields: [{ name: 'inner', type: 'Inner' }] }), references };
  await client.register(`${topic}-inner`, inner);
  await client.register(`${topic}-outer-value`, outer);
  const serializer = new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true });
  const data = await serializer.serialize(`${topic}-outer`, { inner: { x: 7 } });
  const nested = await new AvroDeserializer(client, SerdeType.VALUE, {}).deserialize(`${topic}-outer`, data);
  const other = `:.${topic}:s`;
  const id = await client.register(other, inner);
  const contextual = await client.getLatestSchemaMetadata(other);
  return { nested, context: [id, contextual.subject, contextual.version] };
}

async function main(url, topic) {
  const client = new SchemaRegistryClient({ baseURLs: [url] });
  const subject = `${topic}-value`;
  const field = (name, type, more) => ({ name, type, ...more });
  const record = (...fields) => ({
    schemaType: 'AVRO',
    schema: JSON.stringify({ type: 'record', name: 'User', fields }),
  });
  const first = record(field('name', 'string'));
  const second = record(field('name', 'string'), field('age', 'int', { default: 0 }));
  const broken = record(field('other', 'string'));
  const ids = [await client.register(subject, first), await client.register(subject, first), await client.register(subject, second)];
  const refused = await client.register(subject, broken).then(() => 0, (error) => error.errorCode);
  const compatible = await client.testSubjectCompatibility(subject, broken);
  const serializer = new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true });
  const deserializer = new AvroDeserializer(client, SerdeType.VALUE, {});
  const data = await serializer.serialize(topic, { name: 'Ada', age: 36 });
  const value = await deserializer.deserialize(topic, data);
  const versions = await client.getAllVersions(subject);
  const deleted = await client.deleteSubject(subject);
  const formats = await useOtherFormats(client, topic);
  const more = await useReferencesAndContexts(client, topic);
  console.log(JSON.stringify({ ids, refused, compatible, id: data.readInt32BE(1), value, versions, deleted, formats, ...more }));
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
