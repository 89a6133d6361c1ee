//! Service descriptors for reflection, built from the tables that encode and decode the messages.

use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use tonic_reflection::server::Builder;
use tower::util::BoxCloneSyncService;
use wopr_wire::a2a::{
    method::Version,
    protobuf::{self, Enum, Field, Kind, Message, Shape},
};

use super::{
    super::supported::{Binding, is_served},
    Standard,
};

const STRUCT: &str = "google/protobuf/struct.proto";
const TIMESTAMP: &str = "google/protobuf/timestamp.proto";
const EMPTY: &str = "google/protobuf/empty.proto";

/// The reflection service in both versions; clients try one after the other.
pub(super) fn reflection() -> [(&'static str, Standard); 2] {
    const WHOLE: &str = "descriptors made here name their parts";
    let builder = || {
        Builder::configure()
            .register_file_descriptor_set(files())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = builder().build_v1().expect(WHOLE);
    let v1alpha = builder().build_v1alpha().expect(WHOLE);
    [
        (
            "grpc.reflection.v1.ServerReflection",
            BoxCloneSyncService::new(v1),
        ),
        (
            "grpc.reflection.v1alpha.ServerReflection",
            BoxCloneSyncService::new(v1alpha),
        ),
    ]
}

/// Every file, including imports.
fn files() -> FileDescriptorSet {
    let served = Version::ALL
        .iter()
        .filter(|version| is_served(Binding::Grpc, **version));
    let mut file = well_known();
    file.extend(served.map(|version| package(*version)));
    FileDescriptorSet { file }
}

/// The descriptor file of a version.
fn package(version: Version) -> FileDescriptorProto {
    let package = version.package();
    let messages = protobuf::messages(version);
    let mut enums: Vec<&'static Enum> = Vec::new();
    for field in messages.iter().flat_map(|message| message.fields) {
        if let Kind::Enum(used) = field.kind
            && !enums.iter().any(|known| known.name == used.name)
        {
            enums.push(used);
        }
    }
    FileDescriptorProto {
        name: Some(format!("{}/a2a.proto", package.replace('.', "/"))),
        package: Some(package.to_owned()),
        dependency: [EMPTY, STRUCT, TIMESTAMP].map(str::to_owned).to_vec(),
        message_type: messages.into_iter().map(|each| message(package, each)).collect(),
        enum_type: enums
            .into_iter()
            .map(|each| enumeration(each.name, each.values))
            .collect(),
        service: vec![service(version)],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn service(version: Version) -> ServiceDescriptorProto {
    let method = protobuf::methods(version).map(|method| MethodDescriptorProto {
        name: Some(method.name.to_owned()),
        input_type: Some(full_name(version.package(), method.request.name)),
        output_type: Some(full_name(version.package(), method.response.name)),
        server_streaming: Some(method.operation.is_streaming()),
        ..MethodDescriptorProto::default()
    });
    ServiceDescriptorProto {
        name: Some(protobuf::SERVICE.to_owned()),
        method: method.collect(),
        ..ServiceDescriptorProto::default()
    }
}

/// A fully qualified name, which starts with a dot in descriptors.
fn full_name(package: &str, name: &str) -> String {
    if name.contains('.') {
        format!(".{name}")
    } else {
        format!(".{package}.{name}")
    }
}

fn message(package: &str, message: &Message) -> DescriptorProto {
    let mut descriptor = DescriptorProto {
        name: Some(message.name.to_owned()),
        ..DescriptorProto::default()
    };
    let mut groups: Vec<String> = Vec::new();
    for field in message.fields {
        if let Shape::OneOf(group) = field.shape
            && !groups.iter().any(|known| known == group)
        {
            groups.push(group.to_owned());
        }
    }
    for field in message.fields {
        let (kind, mut type_name) = kind(package, field.kind);
        let mut described = field_of(field, kind);
        match field.shape {
            Shape::One => {}
            Shape::Many => described.set_label(Label::Repeated),
            Shape::OneOf(group) => described.oneof_index = index(&groups, group),
            Shape::Optional => {
                // An optional field forms a synthetic `oneof`, which must follow the real ones.
                let group = format!("_{}", field.name);
                groups.push(group.clone());
                described.oneof_index = index(&groups, &group);
                described.proto3_optional = Some(true);
            }
            Shape::Map => {
                let entry = entry(field, kind, type_name.take());
                type_name = Some(format!(
                    "{}.{}",
                    full_name(package, message.name),
                    entry.name.as_deref().unwrap_or_default()
                ));
                descriptor.nested_type.push(entry);
                described.set_label(Label::Repeated);
                described.set_type(Type::Message);
            }
        }
        described.type_name = type_name;
        descriptor.field.push(described);
    }
    descriptor.oneof_decl = groups
        .into_iter()
        .map(|name| OneofDescriptorProto {
            name: Some(name),
            ..OneofDescriptorProto::default()
        })
        .collect();
    descriptor
}

fn index(groups: &[String], group: &str) -> Option<i32> {
    let index = groups.iter().position(|known| known == group)?;
    i32::try_from(index).ok()
}

fn field_of(field: &Field, kind: Type) -> FieldDescriptorProto {
    let mut described = plain(field.name, i32::try_from(field.number).unwrap_or(i32::MAX), kind);
    described.json_name = Some(field.json.to_owned());
    described
}

fn plain(name: &str, number: i32, kind: Type) -> FieldDescriptorProto {
    let mut described = FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        ..FieldDescriptorProto::default()
    };
    described.set_label(Label::Optional);
    described.set_type(kind);
    described
}

fn kind(package: &str, kind: Kind) -> (Type, Option<String>) {
    let well_known = |name: &str| Some(format!(".google.protobuf.{name}"));
    match kind {
        Kind::Text => (Type::String, None),
        Kind::Bytes => (Type::Bytes, None),
        Kind::Bool => (Type::Bool, None),
        Kind::Int32 => (Type::Int32, None),
        Kind::Enum(names) => (Type::Enum, Some(full_name(package, names.name))),
        Kind::Message(message) => (Type::Message, Some(full_name(package, message.name))),
        Kind::Struct => (Type::Message, well_known("Struct")),
        Kind::Value => (Type::Message, well_known("Value")),
        Kind::Timestamp => (Type::Message, well_known("Timestamp")),
    }
}

/// The entry message of a map field.
fn entry(field: &Field, kind: Type, type_name: Option<String>) -> DescriptorProto {
    let mut name = String::new();
    for word in field.name.split('_') {
        let (first, rest) = word.split_at(1);
        name.push_str(&first.to_uppercase());
        name.push_str(rest);
    }
    map_entry(&format!("{name}Entry"), kind, type_name)
}

fn map_entry(name: &str, kind: Type, type_name: Option<String>) -> DescriptorProto {
    let mut value = plain("value", 2, kind);
    value.type_name = type_name;
    let mut field = vec![plain("key", 1, Type::String), value];
    for described in &mut field {
        described.json_name.clone_from(&described.name);
    }
    DescriptorProto {
        name: Some(name.to_owned()),
        field,
        options: Some(MessageOptions {
            map_entry: Some(true),
            ..MessageOptions::default()
        }),
        ..DescriptorProto::default()
    }
}

fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = values
        .iter()
        .zip(0..)
        .map(|(name, number)| EnumValueDescriptorProto {
            name: Some((*name).to_owned()),
            number: Some(number),
            ..EnumValueDescriptorProto::default()
        });
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: value.collect(),
        ..EnumDescriptorProto::default()
    }
}

/// The imported well-known files, which reflection clients request as well.
fn well_known() -> Vec<FileDescriptorProto> {
    let file = |name: &str, message_type, enum_type| FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some("google.protobuf".to_owned()),
        message_type,
        enum_type,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let with = |name: &str, fields: Vec<(&str, i32, Type, Option<&str>)>| DescriptorProto {
        name: Some(name.to_owned()),
        field: fields
            .into_iter()
            .map(|(name, number, kind, type_name)| FieldDescriptorProto {
                type_name: type_name.map(|name| format!(".google.protobuf.{name}")),
                ..plain(name, number, kind)
            })
            .collect(),
        ..DescriptorProto::default()
    };
    let mut fields = with(
        "Struct",
        vec![("fields", 1, Type::Message, Some("Struct.FieldsEntry"))],
    );
    fields
        .field
        .iter_mut()
        .for_each(|field| field.set_label(Label::Repeated));
    let any = Some(".google.protobuf.Value".to_owned());
    fields.nested_type = vec![map_entry("FieldsEntry", Type::Message, any)];
    let mut list = with("ListValue", vec![("values", 1, Type::Message, Some("Value"))]);
    list.field
        .iter_mut()
        .for_each(|field| field.set_label(Label::Repeated));
    let mut value = with(
        "Value",
        vec![
            ("null_value", 1, Type::Enum, Some("NullValue")),
            ("number_value", 2, Type::Double, None),
            ("string_value", 3, Type::String, None),
            ("bool_value", 4, Type::Bool, None),
            ("struct_value", 5, Type::Message, Some("Struct")),
            ("list_value", 6, Type::Message, Some("ListValue")),
        ],
    );
    value
        .field
        .iter_mut()
        .for_each(|field| field.oneof_index = Some(0));
    value.oneof_decl = vec![OneofDescriptorProto {
        name: Some("kind".to_owned()),
        ..OneofDescriptorProto::default()
    }];
    let timestamp = with(
        "Timestamp",
        vec![("seconds", 1, Type::Int64, None), ("nanos", 2, Type::Int32, None)],
    );
    vec![
        file(EMPTY, vec![with("Empty", Vec::new())], Vec::new()),
        file(
            STRUCT,
            vec![fields, value, list],
            vec![enumeration("NullValue", &["NULL_VALUE"])],
        ),
        file(TIMESTAMP, vec![timestamp], Vec::new()),
    ]
}
