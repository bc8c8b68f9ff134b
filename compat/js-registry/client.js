// What Confluent's client for JavaScript does: node client.js URL TOPIC prints one JSON line.
const {
  AvroDeserializer,
  AvroSerializer,
  SchemaRegistryClient,
  SerdeType,
} = require('@confluentinc/schemaregistry');

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
  console.log(JSON.stringify({ ids, refused, compatible, id: data.readInt32BE(1), value, versions, deleted }));
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
