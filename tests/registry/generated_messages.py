"""Classes as protoc generates them, without files on disk."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def make_classes():
    """Return Empty, Order, Order.Line and Price: shop/order.proto, which imports shop/price.proto."""
    price = descriptor_pb2.FileDescriptorProto(name="shop/price.proto", package="shop", syntax="proto3")
    message = price.message_type.add(name="Price")
    message.field.add(name="cents", number=1, type=5, label=1)
    order = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3", dependency=["shop/price.proto"]
    )
    order.message_type.add(name="Empty")
    message = order.message_type.add(name="Order")
    message.field.add(name="drink", number=1, type=9, label=1)
    message.field.add(name="price", number=2, type=11, label=1, type_name=".shop.Price")
    inner = message.nested_type.add(name="Line")
    inner.field.add(name="n", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(price)
    pool.Add(order)
    names = ("shop.Empty", "shop.Order", "shop.Order.Line", "shop.Price")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
